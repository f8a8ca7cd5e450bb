"""`Pipeline`, the only code in which copies overlap with kernels."""

from __future__ import annotations

import torch

from tilewright.backends.protocol import COMPUTE, COPY_IN, COPY_OUT, Span, Step, unmeasured


class Pipeline:
    """Steps in flight, see `protocol.Pipeline`. Only `wait` makes the host wait.

    By default steps run in order on torch's current stream, while the host prepares the next ones. streams: the number
    of streams, one per slot, so that copies in, kernels and copies out of different slots overlap. downloads: copies
    out have their own stream and overlap with the kernels of the next step. overlap: if False, nothing overlaps, and
    `queue` waits for its step.
    """

    def __init__(self, device: str, *, streams: int = 0, downloads: bool = False, overlap: bool = True) -> None:
        gpu = device != "cpu"
        self.device, self.overlap = device, overlap
        self.streams = [torch.cuda.Stream() for _ in range(streams if gpu and overlap else 0)]
        self.downloads = torch.cuda.Stream() if downloads and gpu and overlap else None

    def queue(self, step: Step, slot: int = 0, span: Span = unmeasured) -> torch.cuda.Event | None:
        """Queue a step. Returns the event of its last copy, if copies out have their own stream. span: measures
        copies in, kernels and copies out."""
        stream = self.streams[slot % len(self.streams)] if self.streams else None  # None: torch's current one
        measured = span if self.device != "cpu" else unmeasured
        with torch.cuda.stream(stream):
            if step.uploads:
                with measured(COPY_IN):
                    for host, tensor in step.uploads:
                        tensor.copy_(torch.from_numpy(host), non_blocking=True)  # type: ignore[attr-defined]
            with measured(COMPUTE):
                step.compute()
            if self.downloads is None:
                with measured(COPY_OUT):
                    _copy_out(step)
                if not self.overlap:
                    self.wait()
                return None
        self.downloads.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.downloads), measured(COPY_OUT):
            _copy_out(step)
        return self.downloads.record_event()

    def wait(self) -> None:
        """See `protocol.Pipeline`. Waits for torch's current stream, too, on which the slots' memory was allocated."""
        if self.device == "cpu":
            return
        for stream in (torch.cuda.current_stream(), *self.streams, *filter(None, [self.downloads])):
            stream.synchronize()


def _copy_out(step: Step) -> None:
    for tensor, host in step.downloads:
        target = torch.from_numpy(host)
        target.copy_(tensor, non_blocking=target.is_contiguous())  # type: ignore[arg-type]
