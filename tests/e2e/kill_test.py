#!/usr/bin/env python3
"""What a killed process must not lose: rounds of mixed load from several clients, kill -9 at a random moment,
restart, and a comparison of everything with a model.

  kill_test.py [--rounds N] [--seed S] [--directory DIR]

The model keeps for each key the operations that may be the one in force: an operation is out once another
one that began after its end was acknowledged. Operations without an answer (in flight at the kill, or failed) may
have happened or not. After a restart each key must hold the result of an operation that is still in,
whole and unchanged; the list must name exactly the keys that can be read, and exactly the large values must have a
file. Reads under load are held against the same model.

A failure prints the seed and leaves the data directory."""

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import CHUNK, Node, wait_for  # noqa: E402

THREADS = 4
WINDOW = 6  # operations that one thread has in flight
KEYS = 300
SIZES = [0, 1, 40, 100, 1000, 3000, 5000, 70000, CHUNK - 1, CHUNK, CHUNK + 1, 700000, 2500000]
WEIGHTS = [3, 5, 20, 20, 20, 10, 10, 6, 1, 1, 2, 2, 1]


class Failure(Exception):
    pass


def content(key, number, size):
    """The value of one put: every byte depends on all three."""
    seed = hashlib.sha256(f"{key} {number} {size}".encode()).digest()
    return random.Random(seed).randbytes(size)


class Operation:
    __slots__ = ("number", "size", "begun", "ended")

    def __init__(self, number, size, begun):
        self.number = number
        self.size = size  # None: a deletion
        self.begun = begun
        self.ended = None  # None: no answer yet

    def value(self, key):
        return None if self.size is None else content(key, self.number, self.size)

    def __repr__(self):
        what = "delete" if self.size is None else f"put of {self.size}"
        return f"#{self.number} {what} [{self.begun}, {self.ended}]"


class Model:
    def __init__(self):
        self.lock = threading.Lock()
        self.clock = 0
        # Nothing was ever put: as if deleted at the beginning of time.
        first = Operation(0, None, 0)
        first.ended = 0
        self.keys = {f"key/{i:04d}": [first] for i in range(KEYS)}
        self.begun = {key: [] for key in self.keys}  # every operation of this round, for reads under load
        self.acknowledged = 0

    def tick(self):
        self.clock += 1
        return self.clock

    def begin(self, key, size):
        with self.lock:
            now = self.tick()
            op = Operation(now, size, now)
            self.keys[key].append(op)
            self.begun[key].append(op)
            return op

    def acknowledge(self, key, op):
        with self.lock:
            op.ended = self.tick()
            self.acknowledged += 1
            self.keys[key] = [o for o in self.keys[key] if o.ended is None or o.ended > op.begun]

    def snapshot(self, key):
        """What may be in force now, and what the time is."""
        with self.lock:
            return list(self.keys[key]), self.clock

    def since(self, key, clock):
        with self.lock:
            return [o for o in self.begun[key] if o.begun > clock]

    def settle(self, key, op):
        """After a restart: this one is in force, the others did not happen or are overwritten."""
        with self.lock:
            if op.ended is None:
                op.ended = self.tick()
            self.keys[key] = [op]
            self.begun[key] = []


def check(model, key, value, before, where):
    """`before` is what was possible when the read began; whatever began meanwhile is possible too."""
    possible, clock = before
    candidates = possible + model.since(key, clock)
    for op in candidates:
        if value is None and op.size is None:
            return op
        if value is not None and len(value) == op.size and op.value(key) == value:
            return op
    size = "no value" if value is None else f"a value of {len(value)} bytes"
    raise Failure(f"{where}: {key} has {size}, possible were {candidates}")


class Load:
    def __init__(self, node, model, rng):
        self.node = node
        self.model = model
        self.stop = threading.Event()
        self.failure = None
        self.threads = [threading.Thread(target=self.work, args=(random.Random(rng.random()),))
                        for _ in range(THREADS)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for t in self.threads:
            t.join(60)
            if t.is_alive():
                raise Failure("a client thread did not end")
        if self.failure is not None:
            raise self.failure

    def work(self, rng):
        try:
            with self.node.client() as c:
                while not self.stop.is_set() and self.turn(c, rng):
                    pass
        except Failure as e:
            self.failure = e
        except Exception as e:  # noqa: BLE001: a fault of the test itself is a failure too
            self.failure = Failure(f"{type(e).__name__}: {e}")

    def turn(self, c, rng):
        """A few operations at once. False when the node is gone."""
        calls = []
        for key in rng.sample(sorted(self.model.keys), WINDOW):
            dice = rng.random()
            if dice < 0.65:
                size = rng.choices(SIZES, WEIGHTS)[0]
                op = self.model.begin(key, size)
                calls.append((key, op, self.put(c, rng, key, op)))
            elif dice < 0.85:
                op = self.model.begin(key, None)
                calls.append((key, op, c.stub.Delete.future(c.pb.DeleteRequest(key=key), timeout=30)))
            else:
                self.read(c, key)
        alive = True
        for key, op, call in calls:
            try:
                call.result()
                self.model.acknowledge(key, op)
            except grpc.RpcError as e:
                alive = False
                if e.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED,
                                    grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise Failure(f"{key}: {e.code()} {e.details()}") from e
        return alive

    def put(self, c, rng, key, op):
        value = op.value(key)
        if rng.random() < 0.6:
            return c.stub.PutObject.future(c.pb.PutRequest(key=key, data=value), timeout=30)
        step = rng.choice([1000, 65536, CHUNK])
        if len(value) // step > 50:
            step = CHUNK

        def messages():
            yield c.pb.PutRequest(key=key)
            for i in range(0, len(value), step):
                yield c.pb.PutRequest(data=value[i:i + step])
        return c.stub.Put.future(messages(), timeout=30)

    def read(self, c, key):
        before = self.model.snapshot(key)
        try:
            value = c.find(key, timeout=30)
        except grpc.RpcError as e:
            if e.code() == grpc.StatusCode.DATA_LOSS or e.code() == grpc.StatusCode.INTERNAL:
                raise Failure(f"read of {key}: {e.code()} {e.details()}") from e
            return
        check(self.model, key, value, before, "read under load")


def verify(node, model):
    large = 0
    with node.client() as c:
        listed = c.list_all("key/", 77)
        if listed != sorted(set(listed)):
            raise Failure("the list is not sorted or names a key twice")
        present = []
        for key in sorted(model.keys):
            value = c.find(key)
            model.settle(key, check(model, key, value, model.snapshot(key), "after the restart"))
            if value is not None:
                present.append(key)
                large += len(value) > CHUNK
        if listed != present:
            raise Failure(f"listed but unreadable: {sorted(set(listed) - set(present))}, "
                          f"readable but not listed: {sorted(set(present) - set(listed))}")
    # What nothing names any more goes once its successor is durable, a tick or two after the start.
    try:
        wait_for(lambda: len(node.disk_files()[1]) == large, 60, "value files without an owner to go")
    except AssertionError as e:
        raise Failure(f"{len(node.disk_files()[1])} value files for {large} large values") from e
    return present


def one_round(number, node, model, rng):
    mode = rng.choice(["none", "none", "interval", "always"])
    node.args = ["-sync", mode, "-sync-interval", "50ms", "-segment-size", rng.choice(["1MiB", "8MiB", "0"])]
    if number > 0 and rng.random() < 0.3:
        # Killed again while it loads, or just after.
        node.start(wait_ready=False)
        time.sleep(rng.random() * 0.05)
        node.kill()
    node.start()
    before = model.acknowledged
    clean = rng.random() < 0.1
    with Load(node, model, rng):
        time.sleep(rng.uniform(0.05, 1.5))  # the moment is random: that is the point
        if clean:
            node.signal(signal.SIGTERM)
            if node.wait() != 0:
                raise Failure("the exit code after SIGTERM is not 0")
        else:
            node.kill()
    node.args = []
    node.start()
    present = verify(node, model)
    corrupt = node.metrics()["ocache_corrupt_records_total"]
    node.kill()
    print(f"round {number}: {mode}, {model.acknowledged - before} acknowledged, {len(present)} keys, "
          f"{'stopped' if clean else 'killed'}, {corrupt:g} records skipped", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--directory")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    rng = random.Random(args.seed)
    base = args.directory or tempfile.mkdtemp(prefix="oc-kill-")
    node = Node(os.path.join(base, "data"))
    model = Model()
    try:
        for number in range(args.rounds):
            one_round(number, node, model, rng)
    except (Failure, AssertionError) as e:
        print(f"FAILED with seed {args.seed}: {e}\nthe data is in {base}, the log in {node.log_path}")
        if node.process is not None:
            node.kill()
        return 1
    node.close()
    shutil.rmtree(base)
    print(f"{args.rounds} rounds, {model.acknowledged} acknowledged operations: nothing was lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
