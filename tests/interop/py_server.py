"""An object cache in a few lines of Python on grpcio: the independent peer that the C client is tested
against. Stubs are generated from src/proto at start, into a folder that is removed again.

Prints "PORT <n>" once it listens; serves until its standard input ends.

  --chunk N    bytes per Get message (default 1 MiB)
  --fail CODE  answer every call with this gRPC code and the text "told to fail: 100% wäre zu viel"
  --corrupt    every value read has its last byte changed
  --topology   GetTopology answers a cluster of two nodes instead of "cluster mode not enabled"
"""

import argparse
import concurrent.futures
import pathlib
import sys
import tempfile
import threading
import time

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).resolve().parents[2] / "src" / "proto"
LIST_MAX = 1000
VALUE_MAX = 1 << 20


def load_stubs(folder):
    for name in ("cluster", "cache"):
        if protoc.main(["protoc", f"-I{PROTO}", f"--python_out={folder}",
                        f"--grpc_python_out={folder}", f"{PROTO}/{name}.proto"]) != 0:
            raise SystemExit(f"protoc refused {name}.proto")
    sys.path.insert(0, folder)
    import cache_pb2
    import cache_pb2_grpc
    import cluster_pb2
    return cache_pb2, cache_pb2_grpc, cluster_pb2


def make_service(pb, pb_grpc, cluster, args):
    class Service(pb_grpc.CacheServiceServicer):
        def __init__(self):
            self.lock = threading.Lock()
            self.values = {}  # key: (value, expires at or None)

        def check(self, context):
            if args.fail:
                context.abort(getattr(grpc.StatusCode, args.fail),
                              "told to fail: 100% wäre zu viel")

        def store(self, key, ttl, data):
            with self.lock:
                self.values[key] = (data, time.time() + ttl if ttl > 0 else None)

        def live(self, key):
            with self.lock:
                value, expires = self.values.get(key, (None, None))
            return None if expires is not None and time.time() >= expires else value

        def PutObject(self, request, context):
            self.check(context)
            if not request.key:
                return pb.PutResponse(
                    success=False,
                    error="rpc error: code = InvalidArgument desc = missing key")
            self.store(request.key, request.ttl_seconds, request.data)
            return pb.PutResponse(success=True)

        def Put(self, requests, context):
            self.check(context)
            first, parts = None, []
            for request in requests:
                if first is None:
                    first = request
                    if not request.key:
                        return pb.PutResponse(success=False, error="missing key")
                parts.append(request.data)
            if first is None:
                return pb.PutResponse(success=False, error="EOF")
            self.store(first.key, first.ttl_seconds, b"".join(parts))
            return pb.PutResponse(success=True)

        def Get(self, request, context):
            self.check(context)
            value = self.live(request.key)
            if value is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "key not found")
            if args.corrupt and value:
                value = value[:-1] + bytes([value[-1] ^ 1])
            start = max(request.start, 0)
            end = len(value) if request.end <= 0 else min(request.end + 1, len(value))
            for at in range(start, end, args.chunk):
                yield pb.GetResponse(data=value[at:min(at + args.chunk, end)])

        def Delete(self, request, context):
            self.check(context)
            with self.lock:
                self.values.pop(request.key, None)
            return pb.DeleteResponse(success=True)

        def page(self, request):
            limit = request.limit if 0 < request.limit <= LIST_MAX else LIST_MAX
            after = request.continuation_token or request.start_key
            with self.lock:
                keys = list(self.values)
            keys = sorted((k for k in keys if k.startswith(request.prefix)
                           and (not after or k.encode() > after.encode())),
                          key=lambda k: k.encode())
            keys = [k for k in keys if self.live(k) is not None]
            more = len(keys) > limit
            return keys[:limit], keys[limit - 1] if more else "", more

        def List(self, request, context):
            self.check(context)
            keys, token, more = self.page(request)
            return pb.ListResponse(keys=keys, continuation_token=token, has_more=more)

        def ListWithValues(self, request, context):
            self.check(context)
            keys, token, more = self.page(request)
            entries = []
            for key in keys:
                value = self.live(key) or b""
                big = len(value) > VALUE_MAX
                entries.append(pb.KeyValue(key=key, value=b"" if big else value,
                                           value_length=len(value), value_omitted=big))
            return pb.ListWithValuesResponse(entries=entries, continuation_token=token,
                                             has_more=more)

        def GetTopology(self, request, context):
            self.check(context)
            if not args.topology:
                return pb.GetTopologyResponse(error="cluster mode not enabled")
            nodes = [cluster.NodeInfo(id=f"n{i}", address=f"h{i}:9000", joined_at=1700000000 + i,
                                      listen_address=f"h{i}:9000",
                                      status=cluster.NODE_STATUS_JOINING if i == 2
                                      else cluster.NODE_STATUS_ACTIVE) for i in (1, 2)]
            tokens = [cluster.NodeTokens(node_id=f"n{i}", tokens=[i, 1000 + i, 4294967295])
                      for i in (1, 2)]
            return pb.GetTopologyResponse(topology=cluster.ClusterTopology(
                epoch=(1 << 63) + 5, nodes=nodes,
                ring_config=cluster.RingConfig(replication_factor=1, node_tokens=tokens)))

    return Service()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunk", type=int, default=1 << 20)
    parser.add_argument("--fail", default="")
    parser.add_argument("--corrupt", action="store_true")
    parser.add_argument("--topology", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pb, pb_grpc, cluster = load_stubs(folder)
        limits = [("grpc.max_receive_message_length", 128 << 20),
                  ("grpc.max_send_message_length", 128 << 20)]
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=8), options=limits)
        pb_grpc.add_CacheServiceServicer_to_server(make_service(pb, pb_grpc, cluster, args),
                                                   server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(f"PORT {port}", flush=True)
        sys.stdin.read()
        server.stop(None).wait()


if __name__ == "__main__":
    main()
