"""Evaluates validating admission policies the way an API server does, as far as they are used here."""

from dataclasses import dataclass
from typing import Any

import cel

from tests.deploy.manifests import Manifest


@dataclass(frozen=True)
class Policy:
    """One policy."""

    spec: Manifest

    def refusals(
        self,
        new: Manifest,
        old: Manifest | None = None,
        *,
        username: str = "ada",
        groups: tuple[str, ...] = ("system:authenticated",),
    ) -> list[str]:
        """Return why a request is refused; nothing when it is not, or when the policy is not for it."""
        context: dict[str, Any] = {
            "object": new,
            "oldObject": old,
            "request": {
                "userInfo": {"username": username, "groups": list(groups)},
                "kind": {"kind": new.get("kind", "")},
            },
            "variables": {},
        }
        for condition in self.spec.get("matchConditions", ()):
            if not cel.evaluate(condition["expression"], context):
                return []
        for variable in self.spec.get("variables", ()):
            context["variables"][variable["name"]] = cel.evaluate(variable["expression"], context)
        return [
            one["message"] if "message" in one else str(cel.evaluate(one["messageExpression"], context))
            for one in self.spec["validations"]
            if not cel.evaluate(one["expression"], context)
        ]
