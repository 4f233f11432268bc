"""The handler's access to its operation."""

from __future__ import annotations

from typing import Any, Literal

from .._async.claim import AsyncClaim

#: What to do with a key after its response: store the response; free the key, because nothing has
#: happened; or leave it in doubt, because something may have happened.
Remember = Literal["keep", "release", "in_doubt"]

#: The key of an operation in the scope of a request.
SCOPE = "hapax.operation"


class Operation:
    """The operation of a protected request: ``Operation.of(request)`` in a handler.

    A handler can save recovery points. If this process dies, the next attempt under the key can
    read them and continue from there. It can also derive keys for other services that are the same
    in every attempt.
    """

    def __init__(self, claim: AsyncClaim, key: str, tenant: str) -> None:
        self._claim = claim
        #: The client's key.
        self.key = key
        self.tenant = tenant
        #: Overrides the policy, if it is set before the response begins: a 503 after the money has
        #: moved must be ``keep`` or ``in_doubt``.
        self.remember: Remember | None = None

    @staticmethod
    def of(request: Any) -> Operation | None:
        """The operation of a request of Starlette or FastAPI, or of an ASGI scope. ``None`` if the
        request is not protected."""
        scope = request if isinstance(request, dict) else request.scope
        found: Operation | None = scope.get(SCOPE)
        return found

    @property
    def claim_key(self) -> str:
        """The key of the claim at the broker, a digest."""
        return self._claim.key

    @property
    def fence(self) -> int:
        """Grows with every attempt. Store it with the effect and compare it, so that a late attempt
        does not overwrite a newer one."""
        return self._claim.fence

    def derive(self, name: str) -> str:
        """The key for a call to another service: the same for every attempt."""
        return self._claim.derive(name)

    async def save(self, name: str, data: str | bytes) -> None:
        """Saves a recovery point for the next attempt. At most 64, and 64 KiB together."""
        await self._claim.save(name, data)

    def recovery_point(self, name: str) -> bytes | None:
        """What an earlier attempt saved before it failed or its process died."""
        return self._claim.recovery_points.get(name)

    @property
    def is_lost(self) -> bool:
        """Whether another attempt may have the key now. Stop then."""
        return self._claim.is_lost

    async def lost(self) -> None:
        """Returns when the lease of the key is lost."""
        await self._claim.lost()
