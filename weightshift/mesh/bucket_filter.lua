-- Names the bucket, 0 to 99, of the user in `x-user-id`, for the routes that keep users on one cohort.
-- A request without a user keeps the bucket that its client named, if any.

function envoy_on_request(handle)
  local user = handle:headers():get("x-user-id")
  if user == nil or user == "" then
    return
  end
  local hash = 5381
  for position = 1, #user do
    hash = (hash * 65599 + string.byte(user, position)) % 4294967296
  end
  -- Once more: neighbouring ids end in neighbouring values, and must not end in neighbouring buckets.
  hash = (hash * 40503) % 4294967296
  handle:headers():replace("x-weightshift-bucket", tostring(math.floor(hash / 4096) % 100))
  handle:clearRouteCache()
end
