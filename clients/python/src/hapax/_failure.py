"""How a handler says that its attempt failed."""

from __future__ import annotations

from ._time import Duration


class Fail(Exception):
    """The attempt failed and had no effect: the message is delivered again after the queue's
    backoff, or after ``retry_in``; with ``dead`` not at all.

    Any other exception fails the attempt too. The difference matters after ``context.begin()`` in a
    queue with ``on_lost = "park"``: this says that the effect did not happen, and the message is
    delivered again. After any other exception the effect is in doubt, and the message is parked.
    """

    in_doubt = False

    def __init__(
        self, error: str = "failed", *, retry_in: Duration | None = None, dead: bool = False
    ) -> None:
        super().__init__(error)
        self.error = error
        self.retry_in = retry_in
        self.dead = dead


class Dead(Fail):
    """The attempt failed, and another one would not help: the message is dead."""

    def __init__(self, error: str) -> None:
        super().__init__(error, dead=True)


class InDoubt(Fail):
    """It is unknown whether the effect happened. After ``context.begin()``, in a queue with
    ``on_lost = "park"``, the message is parked with this error until somebody resolves it.
    Otherwise this is ``Fail``."""

    in_doubt = True
