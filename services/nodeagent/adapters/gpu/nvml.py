"""NVIDIA GPUs, through the driver's own library (NVML), else through ``nvidia-smi``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from libs.events.machine import Gpu
from services.nodeagent.adapters.disk import durable
from services.nodeagent.adapters.host.host_access import HostAccess, NotThere, TookTooLong
from services.nodeagent.adapters.host.pci import cards_on_the_bus

from . import smi
from .nvml_cards import (
    Handle,
    asked,
    card,
    text,
    with_peers,
)


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the GPUs, and how well."""

    gpus: tuple[Gpu, ...] = ()
    state: Literal["verified", "unverified", "absent"]
    reason: str = ""
    driver: str | None = None
    cuda: str | None = None
    problems: tuple[str, ...] = ()
    """Of the machine: cards that the driver does not answer for."""
    source: Literal["nvml", "nvidia-smi", "invented", ""] = ""


class _Known(msgspec.Struct, frozen=True):
    gpus: tuple[Gpu, ...]
    driver: str | None = None
    cuda: str | None = None


class Nvml:
    """Reads the GPUs. When the driver fails, the last known list stays, marked as unverified with the reason."""

    def __init__(self, host: HostAccess, memory: Path | None) -> None:
        self.host = host
        self._memory = memory
        """File that keeps the last list the driver gave; None: it is kept for as long as the process lives."""
        self._last = _Known(())
        self.handles: dict[str, Handle] = {}
        """Of the GPUs of the last look that NVML can be asked about."""
        self.unified: frozenset[str] = frozenset()
        """Those of them that share the machine's memory."""
        self.library: Any = None
        self._begun = False

    def look(self) -> Gpus:
        """Every GPU, or why there is none. Never raises."""
        try:
            self.library = nvml = self.host.nvml()
        except NotThere as missing:
            return self._without_library(str(missing))
        try:
            if not self._begun:
                nvml.nvmlInit()
                self._begun = True
            driver = text(nvml.nvmlSystemGetDriverVersion())
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            return self._failed(nvml, error)
        handles: dict[str, Handle] = {}
        gpus: list[Gpu] = []
        silent: list[str] = []
        for index in range(count):
            before = dict(handles)
            try:
                gpus += card(nvml, self.host, index, handles)
            except nvml.NVMLError as error:
                handles = before
                silent.append(f"GPU {index} does not answer ({error})")
        gpus = with_peers(nvml, gpus, handles)
        self.handles = handles
        self.unified = frozenset(gpu.uuid for gpu in gpus if gpu.unified_memory)
        return self._answered(gpus, silent, driver, _cuda(nvml), "nvml")

    def _answered(
        self, gpus: list[Gpu], silent: list[str], driver: str, cuda: str | None, source: Literal["nvml", "nvidia-smi"]
    ) -> Gpus:
        """The cards that answered, and of those that did not what was known of them."""
        missing = self._missing(gpus) if gpus or silent else []
        problems = []
        kept: list[Gpu] = []
        if silent or missing:
            why = "; ".join(silent) or "the kernel sees it and the driver does not list it"
            where = f" at {', '.join(missing)}" if missing else ""
            problems.append(
                f"{max(len(missing), len(silent))} of {len(gpus) + max(len(missing), len(silent))} NVIDIA cards{where} "
                f"cannot be used: {why}; drain the machine and reboot it, and if that does not help reseat or "
                "replace the card"
            )
            # They stay known, as they were, for as long as the kernel sees them.
            kept = [known for known in self._known().gpus if known.pci_bus_id in missing]
        if not gpus and not kept:
            state: Literal["unverified", "absent"] = "unverified" if problems else "absent"
            reason = f"the NVIDIA driver {driver} sees no GPU"
            return Gpus(state=state, reason=reason, driver=driver, cuda=cuda, problems=tuple(problems), source=source)
        self._keep(_Known((*gpus, *kept), driver, cuda))
        gone = "it does not answer the driver: reboot the machine, and if that does not help replace it"
        gpus += [msgspec.structs.replace(known, problems=(gone,)) for known in kept]
        gpus.sort(key=lambda gpu: (gpu.mig.card_index if gpu.mig else gpu.index, gpu.index))
        return Gpus(
            gpus=tuple(gpus), state="verified", driver=driver, cuda=cuda, problems=tuple(problems), source=source
        )

    def _missing(self, gpus: list[Gpu]) -> list[str]:
        """Cards that the kernel sees and the driver does not answer for."""
        answered = {gpu.pci_bus_id for gpu in gpus}
        if gpus and not any(answered):
            return []  # the driver does not say which is which
        return [bus_id for bus_id in cards_on_the_bus(self.host) if bus_id not in answered]

    def _failed(self, nvml: Any, error: Any) -> Gpus:
        self.handles = {}
        if self._begun:
            # A driver that was loaded anew answers only those who begin anew.
            asked(nvml, "nvmlShutdown")
            self._begun = False
        if isinstance(error, nvml.NVMLError_LibraryNotFound):
            return self._without_library("no NVIDIA driver is installed (libnvidia-ml.so.1 was not found)")
        if isinstance(error, nvml.NVMLError_LibRmVersionMismatch):
            reason = "the NVIDIA driver was updated and the kernel still runs the old one: reboot needed"
        elif isinstance(error, nvml.NVMLError_DriverNotLoaded):
            reason = "the NVIDIA kernel driver is not loaded: run `modprobe nvidia`, and see `dmesg` if that fails"
        else:
            reason = f"the NVIDIA driver does not answer: {error}"
        return self.last_known(reason)

    def _without_library(self, reason: str) -> Gpus:
        """No NVML: ``nvidia-smi`` may be there all the same, from a driver that is not on the library path."""
        self.handles = {}
        try:
            listed = smi.look(self.host)
        except (NotThere, TookTooLong):
            listed = None
        except smi.Failed as error:
            return self.last_known(f"nvidia-smi failed: {error}")
        if listed is not None:
            return self._answered(list(listed.gpus), [], listed.driver, listed.cuda, "nvidia-smi")
        cards = cards_on_the_bus(self.host)
        known = self._known()
        if known.gpus:
            reason = f"{reason}, and it was here before"
        if cards and not known.gpus:
            problem = f"{len(cards)} NVIDIA cards are in this machine and cannot be used: {reason}; install the driver"
            return Gpus(state="unverified", reason=reason, problems=(problem,))
        return self.last_known(reason, never="absent")

    def last_known(self, reason: str, never: Literal["unverified", "absent"] = "unverified") -> Gpus:
        """The last list the driver gave, marked as unverified for this reason; ``never``: when it never gave one."""
        known = self._known()
        if not known.gpus:
            return Gpus(state=never, reason=reason)
        return Gpus(gpus=known.gpus, state="unverified", reason=reason, driver=known.driver, cuda=known.cuda)

    def _known(self) -> _Known:
        if self._memory is None:
            return self._last
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=_Known)
        except (OSError, msgspec.DecodeError):
            return _Known(())

    def _keep(self, known: _Known) -> None:
        if known == self._known():
            return
        self._last = known
        if self._memory is None:
            return
        try:
            durable.write(self._memory, msgspec.json.encode(known))
        except OSError:
            # A full disk must not hide the cards.
            return


def _cuda(nvml: Any) -> str | None:
    try:
        version = int(nvml.nvmlSystemGetCudaDriverVersion())
    except (nvml.NVMLError, AttributeError):
        return None
    return f"{version // 1000}.{version % 1000 // 10}"
