"""A node under attack: `Siege` runs a client beside the attack that behaves and must not notice it, and holds
the node to a bound on its memory, to what its metrics must have counted, and to an orderly stop."""

import threading
import time

from harness import pattern, wait_for

KIB, MIB = 1 << 10, 1 << 20

# What a busy node may need over what it had when idle: arenas of threads that had nothing to do before,
# scratch buffers, the allocator's slack.
FIXED = 12 * MIB
# Per connection that the attacker holds open (session, window floor, its share of queued answers), and per
# stream (call, operation, HTTP/2 stream).
PER_CONNECTION = 256 * KIB
PER_STREAM = 5 * KIB


def sanitized(node):
    """A build with AddressSanitizer keeps freed memory: bounds on memory say nothing about it."""
    with open(f"/proc/{node.process.pid}/maps") as f:
        return "libasan" in f.read()


def peak_rss(node):
    with open(f"/proc/{node.process.pid}/status") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * KIB
    raise AssertionError("no VmHWM")


def reset_peak(node):
    with open(f"/proc/{node.process.pid}/clear_refs", "w") as f:
        f.write("5")


class Bystander(threading.Thread):
    """Puts, reads and deletes on one connection for as long as the attack lasts. Every call has a deadline
    that is generous for a busy machine: what is tested is that calls end well, not how fast."""

    def __init__(self, node, sizes=(100, 30 * KIB), timeout=15):
        super().__init__(daemon=True)
        self.client = node.client()
        self.sizes = sizes
        self.timeout = timeout
        self.rounds = 0
        self.error = None
        self.ending = threading.Event()

    def one(self, i):
        key, value = f"bystander/{i % 8}", pattern(self.sizes[i % len(self.sizes)], i)
        self.client.put(key, value, timeout=self.timeout)
        assert self.client.get(key, timeout=self.timeout) == value
        if i % 3 == 0:
            self.client.delete(key, timeout=self.timeout)
            assert self.client.find(key, timeout=self.timeout) is None

    def run(self):
        try:
            while not self.ending.is_set():
                self.one(self.rounds)
                self.rounds += 1
                self.ending.wait(0.005)
        except Exception as e:  # noqa: BLE001: raised again in finish()
            self.error = e

    def finish(self):
        self.ending.set()
        if self.ident is not None:
            self.join(60)
        assert not self.is_alive(), "the well-behaved client hangs"
        self.client.close()
        if self.error is not None:
            raise AssertionError(f"the well-behaved client failed after {self.rounds} rounds") from self.error


class Siege:
    """with Siege(node, connections=…, streams=…, budget=…): attack. `budget`: bytes that an option of the
    node allows besides. At the end the node is stopped."""

    def __init__(self, node, connections=1, streams=0, budget=0, sizes=(100, 30 * KIB), stop_s=20.0):
        self.node = node
        self.bound = FIXED + connections * PER_CONNECTION + streams * PER_STREAM + budget
        self.sizes = sizes
        self.stop_s = stop_s
        self.held = []

    def keep(self, peer):
        """A connection to be closed at the end, after the node was looked at."""
        self.held.append(peer)
        return peer

    def counted(self, name):
        """How much a metric has grown since the attack began."""
        return self.node.metrics().get(name, 0) - self.before.get(name, 0)

    def wait_counted(self, name, least, timeout_s=15.0):
        wait_for(lambda: self.counted(name) >= least, timeout_s, f"{name} to grow by {least}")

    def wait_alone(self, timeout_s=15.0):
        """Until the node has closed every connection but the bystander's (and the one of the question)."""
        wait_for(lambda: self.node.metrics()['ocache_connections_active{type="client"}'] <= 2, timeout_s,
                 "the attacker's connections to be closed")

    def __enter__(self):
        warm = Bystander(self.node, self.sizes)
        for i in range(6):
            warm.one(i)
        warm.finish()
        self.before = self.node.metrics()
        self.base = self.node.rss_bytes()
        reset_peak(self.node)
        self._accompany()
        wait_for(lambda: self.bystander.rounds > 0 or self.bystander.error, 20, "the well-behaved client")
        return self

    def wait_settled(self):
        """Without the bystander: no buffer in use, no call in progress, no value file that no key names."""
        self.bystander.finish()

        def quiet():
            m = self.node.metrics()
            used = sum(m[f'ocache_buffer_used_bytes{{size="{s}"}}'] for s in ("small", "large", "bulk"))
            return (used == 0 and m["ocache_streams_active"] == 0 and m["ocache_unlink_queue"] == 0 and
                    len(self.node.disk_files()[1]) == m["ocache_value_files"])
        wait_for(quiet, 30, "buffers and files to be given back")
        self._accompany()

    def _accompany(self):
        self.bystander = Bystander(self.node, self.sizes)
        self.bystander.start()

    def __exit__(self, kind, *exc):
        try:
            if kind is None:
                self._look()
            else:
                self.bystander.ending.set()
        finally:
            for peer in self.held:
                peer.close()

    def _look(self):
        done = self.bystander.rounds
        wait_for(lambda: self.bystander.rounds > done or self.bystander.error, 20, "the well-behaved client")
        self.bystander.finish()
        grown = peak_rss(self.node) - self.base
        if not sanitized(self.node):
            assert grown <= self.bound, f"{grown / MIB:.1f} MiB more, at most {self.bound / MIB:.1f} are allowed"
        fresh = Bystander(self.node, self.sizes)
        fresh.one(0)
        fresh.finish()
        began = time.monotonic()
        assert self.node.stop(self.stop_s) == 0, self.node.log()
        assert time.monotonic() - began < self.stop_s
