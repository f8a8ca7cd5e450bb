"""A system that refuses: the Nth call fails, or all from there on."""

import os
import threading


class Faults:
    """The Nth call of the system fails; or, for a full disk, all from there on."""

    CALLS = ("open", "write", "fsync", "replace", "close", "mkdir", "pwrite", "ftruncate")

    def __init__(self, monkeypatch, nth, number, lasting=False):
        self.made, self.nth, self.number, self.lasting = 0, nth, number, lasting
        self.thread, self.writable = threading.get_ident(), set()
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self.counted(name, getattr(os, name)))

    def counted(self, name, call):
        def wrapped(*args, **named):
            reads = name == "close" and args[0] not in self.writable
            if threading.get_ident() != self.thread or reads:
                return call(*args, **named)
            self.made += 1
            frees = name == "close" or (name == "open" and not args[1] & os.O_CREAT)  # a full disk lets those pass
            fails = self.made == self.nth or (self.lasting and self.made > self.nth and not frees)
            done = call(*args, **named) if name == "close" or not fails else None
            if name in ("open", "close"):
                self.writable.discard(args[0])
                self.writable |= {done} if name == "open" and args[1] & (os.O_WRONLY | os.O_RDWR) else set()
            if fails:
                raise OSError(self.number, os.strerror(self.number))
            return done

        return wrapped
