"""The masters of a Redis: who owns which bucket, and units of commands that run on one of them.

What a client would do per command, this does per unit: a batch goes out as
one pipeline for each master, all masters at once, and a unit that meets a
redirect is repeated whole, once, after the topology was read again. Nothing is
raised for what can fail for one master alone: its units answer `TierFailure`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from terracekv.tiers.clock import Clock, Deadline
from terracekv.tiers.entry import BUCKETS, FailureReason, TierFailure, TierName
from terracekv.tiers.errors import SharedConfig, TierFull, TierTimeout, TierUnavailable
from terracekv.tiers.redis_nodes import (
    CONTACT_TIMEOUT_S,
    Node,
    Remap,
    Repeat,
    Replies,
    Reply,
    discover,
    failure_of,
    repeat_of,
    single_of,
    unavailable,
)
from terracekv.tiers.redis_url import Address, RedisUrl, check_server, parse_info
from terracekv.tiers.scripts import Argument, Script

LOG: Final = logging.getLogger("terracekv.shared")

EXCHANGE_BYTES_MAX: Final = 8 * 1_048_576
EXCHANGE_UNITS_MAX: Final = 128
REFRESH_EVERY_S_MIN: Final = 0.25
KEEP_EVERY_S: Final = 0.1
CLOSE_TIMEOUT_S: Final = 1.0

Command = tuple[Script | Argument, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Commands that run one after the other on one connection to the master of `bucket`; repeated only as a whole."""

    bucket: int
    commands: tuple[Command, ...]
    sent_bytes: int = 0  # of the values it carries
    reply_bytes: int = 0  # that its replies will probably have: bounds what an exchange asks for at once
    reply_bytes_max: int = 0  # that one reply may have: bounds how long it may take


class RedisMasters:
    """All masters of a cluster, or the one server there is."""

    def __init__(
        self, url: RedisUrl, clock: Clock, draw: Callable[[], float], address_remap: Remap | None = None
    ) -> None:
        self.url = url
        self.clustered = False
        self.refused = ""  # why the servers must not be used, once that is known
        self.masters: tuple[Node, ...] = ()
        self.closed = False
        self._clock = clock
        self._draw = draw
        self._remap = address_remap
        self._nodes: dict[Address, Node] = {}
        self._owners: list[Node | None] = [None] * BUCKETS
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = float("-inf")
        self._keeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- contact ---

    async def connect(self) -> None:
        """Finds out what is there, within `CONTACT_TIMEOUT_S` + the same for each dead seed.

        Raises SharedConfig, or TierUnavailable in one line; after the latter it goes on trying by itself.
        """
        if self._keeping is None:
            self._keeping = asyncio.get_running_loop().create_task(self._keep())
        await self._contact()

    async def _contact(self) -> None:
        living, last = [], "no answer"
        for seed, info in zip(self.url.seeds, await asyncio.gather(*map(self._greet, self.url.seeds)), strict=True):
            if isinstance(info, dict):
                living.append((seed, info))
            else:
                last = info.detail
        if not living:
            raise TierUnavailable(f"no Redis answers at {self.url.masked}: {last}")
        self.clustered = any(info.get("cluster_enabled") == "1" for _, info in living)
        if self.clustered:
            self._adopt(await discover(self.url, [seed for seed, _ in living], self._remap))
        else:
            self._adopt([living[0][0]] * BUCKETS)
        await self._check()
        self.refused = ""

    async def _greet(self, seed: Address) -> dict[str, str] | TierFailure:
        node = Node(self._address(*seed), self.url, self._clock, self._draw)
        try:
            replies = await node.exchange([("INFO",)], Deadline.after(CONTACT_TIMEOUT_S, self._clock), 0, 0)
        finally:
            await node.close()
        info = single_of(replies)
        return parse_info(info or b"") if not isinstance(info, TierFailure) else info

    async def _check(self) -> None:
        commands = [
            ("INFO",),
            ("CONFIG", "GET", "maxmemory-policy"),
            ("CONFIG", "GET", "cluster-allow-reads-when-down"),
        ]
        for node, replies in await self.ask_all(commands, Deadline.after(CONTACT_TIMEOUT_S, self._clock)):
            info = single_of(replies if isinstance(replies, TierFailure) else replies[:1])
            if not isinstance(info, bytes) or isinstance(replies, TierFailure):
                continue
            config: dict[str, str] = {}
            for pairs in replies[1:]:
                if isinstance(pairs, list) and len(pairs) == 2:
                    config[pairs[0].decode()] = pairs[1].decode()
            try:
                warnings = check_server(parse_info(info), config, node.address)
            except SharedConfig as error:
                self.refused = str(error)
                raise
            for warning in warnings:
                LOG.warning(warning)

    def _adopt(self, owners: Sequence[Address | None]) -> None:
        self._owners = [None if address is None else self._node(address) for address in owners]
        self.masters = tuple(dict.fromkeys(node for node in self._owners if node is not None))
        self._refreshed_s = self._clock.age_s()
        for address in [address for address, node in self._nodes.items() if node not in self.masters]:
            self.in_background(self._nodes.pop(address).retire())

    def _node(self, address: Address) -> Node:
        if address not in self._nodes:
            self._nodes[address] = Node(address, self.url, self._clock, self._draw)
        return self._nodes[address]

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs work whose outcome nobody waits for; `close` gives it a moment to end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- units ---

    async def run(self, units: Sequence[Unit], deadline: Deadline) -> list[Replies]:
        """The replies of each unit, in order, or why its master failed. Error replies are values among the replies."""
        if self.closed or self.refused or not self.masters:
            return [unavailable(self.trouble())] * len(units)
        if deadline.passed():
            return [TierFailure(TierName.SHARED, FailureReason.TIMEOUT, "the deadline had passed")] * len(units)
        targets = [(index, unit, self._owners[unit.bucket], False) for index, unit in enumerate(units)]
        results = await self._round(targets, deadline, again=False)
        repeats = {index: repeat for index, replies in results.items() if (repeat := _repeat(replies)) is not None}
        if repeats:
            if not all(repeat.unknown_script for repeat in repeats.values()):
                await self.refresh(deadline)
            targets = [(at, units[at], *self._redirected(units[at], repeat)) for at, repeat in repeats.items()]
            results |= await self._round(targets, deadline, again=True)
        return [results[index] for index in range(len(units))]

    async def _round(self, targets: Sequence[_Target], deadline: Deadline, again: bool) -> dict[int, Replies]:
        results: dict[int, Replies] = {}
        by_node: dict[Node, list[_Target]] = {}
        for target in targets:
            if target[2] is None:
                results[target[0]] = unavailable("no master serves the slot")
            else:
                by_node.setdefault(target[2], []).append(target)
        exchanges = [
            self._exchange(node, cut, deadline, again) for node, mine in by_node.items() for cut in _exchanges(mine)
        ]
        # One exchange needs no task of its own.
        answers = [await exchanges[0]] if len(exchanges) == 1 else await asyncio.gather(*exchanges)
        for answer in answers:
            results |= answer
        return results

    async def _exchange(
        self, node: Node, targets: Sequence[_Target], deadline: Deadline, again: bool
    ) -> dict[int, Replies]:
        commands: list[Sequence[Argument]] = []
        for _, unit, _, asking in targets:
            for command in unit.commands:
                commands += [("ASKING",)] if asking else []
                commands.append(_wire(command, by_source=again))
        replies = await node.exchange(
            commands,
            deadline,
            sum(unit.sent_bytes for _, unit, _, _ in targets),
            max(unit.reply_bytes_max for _, unit, _, _ in targets),
        )
        if isinstance(replies, TierFailure):
            self._refresh_soon()
            return dict.fromkeys((target[0] for target in targets), replies)
        if targets[0][3]:
            replies = replies[1::2]
        remaining = iter(replies)
        return {index: [next(remaining) for _ in unit.commands] for index, unit, _, _ in targets}

    def _redirected(self, unit: Unit, repeat: Repeat) -> tuple[Node | None, bool]:
        if repeat.address is None:
            return self._owners[unit.bucket], False
        host, port = repeat.address
        node = self._node(self._address(host or self.url.seeds[0].host, port))
        if not repeat.asking and self._owners[unit.bucket] is not node:
            # The topology just read may be of a node that does not know yet: who sent us there does.
            self._owners[unit.bucket] = node
            self.masters = tuple(dict.fromkeys((*self.masters, node)))
        return node, repeat.asking

    def _address(self, host: str, port: int) -> Address:
        return Address(*self._remap((host, port))) if self._remap else Address(host, port)

    async def ask(self, bucket: int, command: Command, deadline: Deadline) -> Reply:
        """The reply of one command. Raises TierError, for an error reply too."""
        (replies,) = await self.run([Unit(bucket, (command,))], deadline)
        failure = replies if isinstance(replies, TierFailure) else failure_of(replies[0])
        if failure is not None:
            raise _ERRORS[failure.reason](failure.detail)
        return replies[0] if isinstance(replies, list) else None

    async def ask_all(self, commands: Sequence[Sequence[Argument]], deadline: Deadline) -> list[tuple[Node, Replies]]:
        """The same commands on every master."""
        masters = self.masters
        replies = await asyncio.gather(*(node.exchange(commands, deadline) for node in masters))
        return list(zip(masters, replies, strict=True))

    # --- keeping up ---

    async def refresh(self, deadline: Deadline) -> None:
        """Reads the topology again, unless that just happened; those who come meanwhile share the answer."""
        if self._refreshing is None:
            if not self.clustered or self._clock.age_s() - self._refreshed_s < REFRESH_EVERY_S_MIN:
                return
            self._refreshing = self.in_background(self._refresh())
        await asyncio.wait((self._refreshing,), timeout=deadline.left_s())

    def _refresh_soon(self) -> None:
        late = self._clock.age_s() - self._refreshed_s >= CONTACT_TIMEOUT_S
        if self.clustered and late and self._refreshing is None and not self.closed:
            self._refreshing = self.in_background(self._refresh())

    async def _refresh(self) -> None:
        known = dict.fromkeys([*(node.address for node in self.masters), *self.url.seeds])
        try:
            self._adopt(await discover(self.url, known, self._remap))
        except TierUnavailable as error:
            self._refreshed_s = self._clock.age_s()  # a failure is not repeated at once either
            LOG.warning("%s; going on with the topology known", error)
        finally:
            self._refreshing = None

    async def _keep(self) -> None:
        """Until closed: tries nodes that were cut off, and the first contact if it failed."""
        told = ""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            for node in self.masters:
                if node.breaker.due(self._clock.age_s()):
                    self.in_background(node.probe())
            if self.refused or not self.masters:
                await asyncio.sleep(CONTACT_TIMEOUT_S)
                try:
                    await self._contact()
                    told = ""
                except (TierUnavailable, SharedConfig) as error:
                    if str(error) != told:
                        LOG.warning("%s", error)
                    told = str(error)

    def owner(self, bucket: int) -> Address | None:
        """The master of a bucket, as far as is known."""
        node = self._owners[bucket]
        return None if node is None else node.address

    @property
    def unowned(self) -> int:
        """Buckets that no master serves."""
        return self._owners.count(None)

    def trouble(self) -> str:
        """Why nothing can be asked, in words; empty if something can."""
        if self.closed:
            return "closed"
        return self.refused or ("" if self.masters else f"{self.url.masked} has not been reached yet")

    async def close(self) -> None:
        """Closes everything. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        self.closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))


_Target = tuple[int, Unit, Node | None, bool]  # index, unit, where to, whether to ask for a slot on the move


_ERRORS: Final = {
    FailureReason.UNAVAILABLE: TierUnavailable,
    FailureReason.TIMEOUT: TierTimeout,
    FailureReason.FULL: TierFull,
}


def _exchanges(targets: Sequence[_Target]) -> Iterator[list[_Target]]:
    """Cuts what goes to one node so that neither side holds much more than `EXCHANGE_BYTES_MAX` at once."""
    cut: list[_Target] = []
    size_bytes = 0
    for target in targets:
        unit_bytes = target[1].sent_bytes + target[1].reply_bytes
        full = size_bytes + unit_bytes > EXCHANGE_BYTES_MAX or len(cut) >= EXCHANGE_UNITS_MAX
        if cut and (full or target[3] is not cut[0][3]):
            yield cut
            cut, size_bytes = [], 0
        cut.append(target)
        size_bytes += unit_bytes
    yield cut


def _wire(command: Command, by_source: bool) -> list[Argument]:
    wire: list[Argument] = []
    for argument in command:
        if isinstance(argument, Script):
            wire += ("EVAL", argument.source) if by_source else ("EVALSHA", argument.sha)
        else:
            wire.append(argument)
    return wire


def _repeat(replies: Replies) -> Repeat | None:
    if isinstance(replies, TierFailure):
        return None
    return next((repeat for reply in replies if (repeat := repeat_of(reply)) is not None), None)
