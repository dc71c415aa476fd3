"""Every error Weightshift raises, under one root.

The class docstring is the default message; `exit_code` is what the command line ends with. Names are
domain nouns and cross process boundaries as `type` strings, so renaming one is a breaking change.
"""


class WeightshiftError(Exception):
    """Weightshift failed."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__ or type(self).__name__)


class InvalidInput(WeightshiftError):
    """The input is invalid."""

    exit_code = 2


class InvalidPlan(InvalidInput):
    """The release plan is invalid."""


class InvalidManifest(InvalidInput):
    """The artifact manifest is invalid."""


class UnsafeArtifact(InvalidInput):
    """The artifact holds something that is never loaded."""


class UnknownArtifact(InvalidInput):
    """The registry knows no such artifact."""


class UnknownApproval(InvalidInput):
    """The registry has issued no such approval."""


class ApprovalInvalid(InvalidInput):
    """The approval does not count for this release."""


class UnknownService(InvalidInput):
    """Nothing is published for this model and environment."""


class RouteInvalid(InvalidInput):
    """The mesh's route is missing, or does not name both cohorts exactly once."""


class UnknownChannel(InvalidInput):
    """The worker's settings define no such notification channel."""


class NotificationRefused(InvalidInput):
    """A notification's receiver will never take it as it is."""


class UnknownRelease(InvalidInput):
    """The registry knows no such release."""


class ScaleRefused(InvalidInput):
    """The cluster does not let the number of pods be read or changed."""


class NoCanaryCapacity(InvalidInput):
    """No canary instance reports to the registry, so nothing could be tried."""


class CanaryDiffers(InvalidInput):
    """A stable instance on a GPU has no canary instance of its build and device."""


class FeatureSchemaChanged(InvalidInput):
    """The artifact takes other requests than the one that serves."""


class QueryRefused(InvalidInput):
    """Prometheus refuses a query as it is."""


class Unauthorised(InvalidInput):
    """The token does not allow this."""


class Conflict(WeightshiftError):
    """Somebody else changed this first."""

    exit_code = 4


class ArtifactConflict(Conflict):
    """The artifact id is taken by other content."""


class ArtifactNotReady(Conflict):
    """The artifact is not approved."""


class RevisionConflict(Conflict):
    """The target's revision is not the expected one."""


class StaleFence(Conflict):
    """A newer command was already accepted; this one comes too late and changed nothing."""


class MeshDrift(Conflict):
    """Somebody else changed the split, or its fence, since the last command."""


class RevisionReused(Conflict):
    """The next revision already names an artifact; run `weightshift registry recover`."""


class ReleaseActive(Conflict):
    """Another release of this model and environment is active."""


class CanaryCarriesTraffic(Conflict):
    """The canary carries traffic, which would get unjudged what is published to it."""


class OperationConflict(Conflict):
    """The operation id was used before for something else."""


class Unreachable(WeightshiftError):
    """A service does not answer."""

    exit_code = 5


class RegistryUnreachable(Unreachable):
    """The registry does not answer."""


class ObjectStoreUnreachable(Unreachable):
    """The object store does not answer."""


class MeshUnreachable(Unreachable):
    """The mesh does not answer."""


class KubernetesUnreachable(Unreachable):
    """The Kubernetes API does not answer."""


class KubernetesRefused(WeightshiftError):
    """The Kubernetes API refuses a request: HTTP `status`, and `retry_after` seconds where it named any."""

    def __init__(self, message: str | None = None, *, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class MetricsUnreachable(Unreachable):
    """Prometheus does not answer."""


class NotificationUndelivered(Unreachable):
    """A notification's receiver does not take it; `retry_after` is how many seconds it asked for."""

    def __init__(self, message: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TemporalUnreachable(Unreachable):
    """Temporal does not answer."""


class ReleaseStuck(TemporalUnreachable):
    """The release's worker fails to take it any further."""


class RollbackUnderWay(WeightshiftError):
    """Traffic is being taken back, and is not back yet."""


class ReleaseTerminated(WeightshiftError):
    """The release was terminated, which runs no rollback."""


class MeshConfirmationTimeout(Unreachable):
    """The mesh accepted the split but does not show it."""


class CandidateError(WeightshiftError):
    """The candidate cannot be served. What serves now is not affected."""


class DigestMismatch(CandidateError):
    """The bytes are not the ones the manifest names."""


class SignatureInvalid(CandidateError):
    """The artifact's signature is missing, or not one that is accepted here."""


class AuthorisationInvalid(CandidateError):
    """The target's release authorisation is missing, or not one that is accepted here."""


class IncompatibleModel(CandidateError):
    """The weights do not fit the architecture."""


class DryRunFailed(CandidateError):
    """The model's answers to its representative requests are not acceptable."""


class OutOfMemory(CandidateError):
    """There is no memory for a second generation; the current one serves on."""


class SwapRefused(CandidateError):
    """This instance does not change its weights while it serves; restart it to load another artifact."""


class SwapTooSlow(WeightshiftError):
    """The swap would have held requests back for too long; the previous weights serve on."""


class Superseded(CandidateError):
    """A newer target has replaced this candidate."""


class GrantWithdrawn(WeightshiftError):
    """The wave grant ended before the swap; the candidate waits for another one."""


class RequestRefused(WeightshiftError):
    """The request is not served here and now; retry on another instance."""


class AnswerTooLate(RequestRefused):
    """The answer took too long; send the request again."""


class QueueFull(RequestRefused):
    """The admission queue is full."""


class MemoryExhausted(RequestRefused):
    """The device had no memory for this request; the instance rests for a moment."""


class NotServing(RequestRefused):
    """No generation may answer business traffic on this instance."""


class SessionEnded(RequestRefused):
    """The session's time is up, because its model was replaced or the instance stops; send it again."""


class SchemaMismatch(WeightshiftError):
    """The registry's database and this build have different schema versions."""


class LocalStackError(WeightshiftError):
    """The local stack could not be started or stopped."""
