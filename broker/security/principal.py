"""Who somebody is, once it is known (Kafka's `KafkaPrincipal`)."""

from __future__ import annotations

from dataclasses import field

from wire.dataclass import dataclass

USER = "User"


@dataclass(slots=True, frozen=True)
class Principal:
    """Equal by type and name, as those that ACLs name; the type counts («User» is all there is)."""

    type: str
    name: str
    #: It logged in by a delegation token, which stands for its owner.
    is_by_token: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
