#!/usr/bin/env python3
"""Prints the byte vectors of the tests in this folder: the formats written a second time, from their
description alone, so that a fault of the C code cannot hide in its own tests."""

import struct

SALT = 0x8877665544332211
BOOT = bytes(range(16))


def crc32c(crc, data):
    s = crc ^ 0xFFFFFFFF
    for byte in data:
        s ^= byte
        for _ in range(8):
            s = (s >> 1) ^ (0x82F63B78 if s & 1 else 0)
    return s ^ 0xFFFFFFFF


def salted(data):
    return crc32c(crc32c(0, struct.pack("<Q", SALT)), data)


def pad8(data):
    return data + bytes(-len(data) % 8)


def varint(x):
    out = b""
    while x >= 128:
        out += bytes([x & 127 | 128])
        x >>= 7
    return out + bytes([x])


def zigzag(d):
    return d << 1 if d >= 0 else (-d << 1) - 1


def signed(data):
    """With a plain checksum behind."""
    return data + struct.pack("<I", crc32c(0, data))


def record(kind, key, value, object_len, version, expires, offset):
    body = struct.pack("<IQQIHBB", crc32c(0, value) ^ 0x6F637643, version, object_len, expires,
                       len(key), kind, 0) + key
    head = struct.pack("<I", crc32c(0, struct.pack("<QQ", SALT, offset) + body))
    return pad8(head + body + value)


def segment_header():
    return signed(struct.pack("<QIIQ16sQIII", 0x31474553434F, 1, 7, SALT, BOOT,
                              0x0102030405060700, 0, 0, 0))


def chunk_header(file, index, data):
    crc = crc32c(0, struct.pack("<QQII", file, index, crc32c(0, data), len(data)))
    return struct.pack("<IIQ", crc, len(data), index)


def footer_copy():
    entries = bytes([1 | 16]) + varint(zigzag(0x0102030405060708)) + varint(8000)
    entries += varint(zigzag(0x11121314)) + varint(0) + varint(3) + b"key"
    entries += bytes([3 | 8]) + varint(6) + varint(zigzag(2)) + varint(2) + varint(1) + b"z"
    trailer = struct.pack("<QIIQQQQIII", 0x31544F4F46434F, 7, 1, 8192, 2, len(entries), 64, 7,
                          salted(pad8(entries)), 0)
    return pad8(entries) + trailer + struct.pack("<I", salted(trailer))


def block(index, shard, entries, payload, flags):
    body = struct.pack("<IQIIII", 32 + len(pad8(payload)), index, shard, entries, len(payload),
                       flags) + pad8(payload)
    return struct.pack("<I", salted(body)) + body


def entries_block():
    p = bytes([0]) + varint(0) + varint(3) + b"abc" + varint(zigzag(1000)) + varint(5)
    p += varint(zigzag(7)) + varint(8)
    p += bytes([2 | 32 | 64]) + varint(2) + varint(1) + b"d" + varint(zigzag(-10))
    p += varint(1000000) + varint(300) + varint(zigzag(99))
    return block(0, 1, 2, p, 0)


def checkpoint_header():
    return signed(struct.pack("<QIIQIIQQ16sI", 0x3154504B43434F, 1, 4, SALT, 7, 0, 64,
                              0x0102030405060708, BOOT, 0))


def show(name, data):
    print(f"{name} ({len(data)} bytes)")
    for i in range(0, len(data), 16):
        print("    " + " ".join(f"0x{b:02x}," for b in data[i:i + 16]))


assert crc32c(0, b"123456789") == 0xE3069283
show("put", record(1, b"key", b"value", 5, 0x0102030405060708, 0x11121314, 64))
show("mark", record(4, b"", struct.pack("<IIQ", 7, 0, 0x1000), 0, 0x0102030405060709, 0, 112))
show("segment header", segment_header())
show("chunk header", chunk_header(0x0A0B, 3, b"chunk"))
show("footer copy", footer_copy())
show("checkpoint header", checkpoint_header())
show("checkpoint block", entries_block())
show("checkpoint trailer", block(1, 0, 0, struct.pack("<QQIIQ", 2, 1, 9, 0, 4096), 1))
show("clock slot", signed(struct.pack("<QQQI", 0x314B434F4C434F, 3, 0x0102030405060708, 0)))
