"""What the gateways of other hosts say they count and hold. Those of this host are in the table they share.

Figures are absolute, so a message that is lost costs nothing but the time until the next that says the same. Of one
that is silent nothing is believed gone that may still be used: its counts stay for their minute, what it reserved for
as long as a frozen process may come back, what it settled until the ledger has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct

from libs.events.usage import GatewayHoldings, Holding, Holdings

from .shared_table import KEPT_S, MINUTE_S

SETTLED_KEPT_S = 7 * 86400
"""What never came to the ledger in so long never will."""
LOST_S = 60
"""A gateway that was not heard for so long admits nothing more, or no more than its share."""
WORDS = 4
"""Of a record: whose it is, and three figures."""
_FIGURES = Struct(f"={WORDS}q")
_SHORT = 2**60 - 1


def short(name: str) -> int:
    """What a name goes by in ``Records``: of two digits, as Python keeps numbers; three take half as much again."""
    return hash(name) & _SHORT


def fits(left: int, new: int, amount: int, hosts: int) -> bool:
    """Whether a host may use so much of what all use. ``left``: after ``amount``, which it is about; ``new``: what of
    this host's the others may not have heard, with this.

    That may be at most an equal share of what they know to be left. Where there is room for this, though the share be
    smaller, it fits if the host has nothing else that is new.
    """
    return left >= 0 and (hosts == 1 or new <= (left + new) // hosts or new <= amount)


class Records:
    """Three figures by name and neighbour, in little memory: there may be very many names."""

    def __init__(self) -> None:
        self._by_name: dict[int, bytes | array[int]] = {}
        """A name only one speaks of, as most are, has bytes: an array takes twice as much."""
        self.version = 0
        """Rises whenever something changes."""

    def of(self, name: int) -> Sequence[int]:
        """Of all neighbours, one after the other, four figures each."""
        records = self._by_name.get(name, ())
        return memoryview(records).cast("q") if isinstance(records, bytes) else records

    def put(self, whose: int, name: int, first: int, second: int, third: int) -> None:
        """Replace the figures one gateway has for a name."""
        self.version += 1
        known = self._by_name.get(name, b"")
        new = _FIGURES.pack(whose, first, second, third)
        if not known or (isinstance(known, bytes) and known[:8] == new[:8]):
            self._by_name[name] = new
            return
        records = array("q", known) if isinstance(known, bytes) else known
        self._by_name[name] = records
        for at in range(0, len(records), WORDS):
            if records[at] == whose:
                records[at + 1] = first
                records[at + 2] = second
                records[at + 3] = third
                return
        records.frombytes(new)

    def drop(self, whose: int, name: int) -> None:
        """Forget the figures one gateway has for a name."""
        records = array("q", self.of(name))
        for at in range(0, len(records), WORDS):
            if records[at] == whose:
                self.version += 1
                del records[at : at + WORDS]
                if records:
                    self._by_name[name] = records
                else:
                    del self._by_name[name]
                return

    def __len__(self) -> int:
        return len(self._by_name)


Report = tuple[dict[str, int], dict[str, tuple[int, int]]]
"""What is held by account and period, and counts as ``Counts.said`` has them."""


class Acknowledgements:
    """When what this gateway told counts as heard: everybody was heard after the bus had it.

    Who is frozen or cut off has then said how much it used before; what it uses from then on is at most its share of
    what was left, and so is what the others use until they hear of it again.
    """

    def __init__(self) -> None:
        self._told: Report | None = None
        self._asked: Report = ({}, {})
        self._asked_at: float | None = None
        self.at = 0.0
        """When something was found to be heard everywhere last."""

    @property
    def waits(self) -> bool:
        """Whether something was told and is not known to be heard."""
        return self._asked_at is not None

    def told(self, holdings: Mapping[str, Holding], counts: Mapping[str, tuple[int, int]]) -> None:
        """The bus has a message that says this."""
        if self._told is None:
            self._told = ({}, {})
        asked, waiting = self._asked[0], self._told[0]
        for name, held in holdings.items():
            waiting[name] = amount = held.reserved + held.settled
            if name in asked:
                # Who answered may have heard this too, and believe no more than it says.
                asked[name] = min(asked[name], amount)
        self._told[1].update(counts)

    def unsure(self, holdings: Iterable[str]) -> None:
        """Whether the bus has a message about these is not known: no answer says any more what others believe."""
        for name in holdings:
            self._asked[0].pop(name, None)
            if self._told is not None:
                self._told[0].pop(name, None)

    def confirmed(self, other_hosts: OtherHosts, now: float) -> Report | None:
        """What is heard everywhere now and was not when this was last called; to be called often."""
        confirmed = None
        if self._asked_at is not None and other_hosts.heard_since(self._asked_at, now):
            confirmed = self._asked
            self._asked_at = None
            self.at = now
        if self._asked_at is None and self._told is not None:
            self._asked, self._told, self._asked_at = self._told, None, now
        return confirmed


class _OtherGateway:
    """One life of a gateway."""

    __slots__ = ("counted", "gone", "heard_at", "held", "host", "index", "life", "number", "parts")

    def __init__(self, index: int, message: Holdings) -> None:
        self.index = index
        self.host = message.host
        self.life = message.life
        self.number = -1
        self.heard_at = 0.0
        self.gone = False
        """It left, or is lost: no share of what is left is kept for it."""
        self.counted: set[int] = set()
        """Names whose requests or tokens it counts."""
        self.held: set[int] = set()
        """Names it holds something of."""
        self.parts: tuple[set[int], set[int]] = (set(), set())
        """Names in the parts so far of what it is saying as a whole."""


class OtherHosts:
    """All of them. Times are seconds that never fall."""

    def __init__(self, gateway_id: str, host: str) -> None:
        self._gateway_id = gateway_id
        self._host = host
        self._lives: dict[str, list[_OtherGateway]] = {}
        """By gateway, the newest life last. Earlier ones are kept for what they counted."""
        self._indices = 0
        self.counts = Records()
        """Requests and tokens of the last minute, by the hash of a key's id or a project."""
        self.holdings = Records()
        """Reserved, settled and ``until``, by the hash of an account and period."""
        self.hosts = 1
        """That may be spending, this one among them."""

    def heard(self, message: Holdings, now: float) -> bool:
        """Take a message in that was sent at a time; whether it was news."""
        if message.gateway_id == self._gateway_id or message.host == self._host:
            return False
        gateway = self._of(message)
        if gateway is None or message.number <= gateway.number:
            return False
        gateway.number = message.number
        gateway.heard_at = max(gateway.heard_at, now)
        counted = self._count(gateway, message)
        held = self._hold(gateway, message)
        gone = False
        if isinstance(message, GatewayHoldings):
            gone = message.leaving
            if message.part == 0:
                gateway.parts = (set(), set())
            gateway.parts[0].update(counted)
            gateway.parts[1].update(held)
            if message.part == message.parts - 1:
                self._only(gateway, *gateway.parts)
                gateway.parts = (set(), set())
        if gone != gateway.gone or message.number == 0:
            gateway.gone = gone
            self._count_hosts()
        return True

    def _of(self, message: Holdings) -> _OtherGateway | None:
        """The life a message is of; None: there is a later one."""
        lives = self._lives.setdefault(message.gateway_id, [])
        if lives and lives[-1].life >= message.life:
            return lives[-1] if lives[-1].life == message.life else None
        for earlier in lives:
            # What it held is in the spool the new life has read. What it counted was counted.
            self._only(earlier, earlier.counted, ())
            earlier.gone = True
        self._indices += 1
        lives.append(_OtherGateway(self._indices, message))
        self._count_hosts()
        return lives[-1]

    def _count(self, gateway: _OtherGateway, message: Holdings) -> set[int]:
        names = set()
        for name in {*message.requests, *message.tokens}:
            hashed = short(name)
            requests, tokens = message.requests.get(name, 0), message.tokens.get(name, 0)
            if requests or tokens:
                self.counts.put(gateway.index, hashed, requests, tokens, 0)
                names.add(hashed)
            elif hashed in gateway.counted:
                gateway.counted.discard(hashed)
                self.counts.drop(gateway.index, hashed)
        gateway.counted |= names
        return names

    def _hold(self, gateway: _OtherGateway, message: Holdings) -> set[int]:
        names = set()
        for name, held in message.budgets.items():
            hashed = short(name)
            if held.reserved or held.settled:
                self.holdings.put(gateway.index, hashed, held.reserved, held.settled, held.until)
                names.add(hashed)
            elif hashed in gateway.held:
                gateway.held.discard(hashed)
                self.holdings.drop(gateway.index, hashed)
        gateway.held |= names
        return names

    def _only(self, gateway: _OtherGateway, counted: Iterable[int], held: Iterable[int]) -> None:
        """Forget what it counts and holds beyond these."""
        for name in gateway.counted.difference(counted):
            self.counts.drop(gateway.index, name)
        for name in gateway.held.difference(held):
            self.holdings.drop(gateway.index, name)
        # Copies take no more memory than they need; sets that grew take up to four times as much.
        gateway.counted = set(gateway.counted.intersection(counted))
        gateway.held = set(gateway.held.intersection(held))

    def forget(self, now: float) -> None:
        """Look who is silent; to be called every second or so."""
        for gateway_id, lives in list(self._lives.items()):
            for gateway in list(lives):
                silent_s = now - gateway.heard_at
                if silent_s > MINUTE_S:
                    self._only(gateway, (), gateway.held)
                if silent_s > LOST_S:
                    gateway.gone = True
                if silent_s > KEPT_S or (gateway.gone and silent_s <= LOST_S):
                    self._give_back(gateway)
                if silent_s > SETTLED_KEPT_S or (gateway.gone and silent_s > MINUTE_S and not gateway.held):
                    self._only(gateway, (), ())
                    lives.remove(gateway)
            if not lives:
                del self._lives[gateway_id]
        self._count_hosts()

    def heard_since(self, at: float, now: float) -> bool:
        """Whether everybody who is not lost was heard after a time."""
        return not any(
            not gateway.gone and now - LOST_S < gateway.heard_at <= at
            for lives in self._lives.values()
            for gateway in lives
        )

    def _give_back(self, gateway: _OtherGateway) -> None:
        """Nothing of it is being answered any more."""
        for name in list(gateway.held):
            records = self.holdings.of(name)
            for at in range(0, len(records), WORDS):
                if records[at] == gateway.index and records[at + 1]:
                    settled, until = records[at + 2], records[at + 3]
                    if settled:
                        self.holdings.put(gateway.index, name, 0, settled, until)
                    else:
                        self.holdings.drop(gateway.index, name)
                        gateway.held.discard(name)
                    break

    def _count_hosts(self) -> None:
        heard = {gateway.host for lives in self._lives.values() for gateway in lives if not gateway.gone}
        self.hosts = len(heard | {self._host})
