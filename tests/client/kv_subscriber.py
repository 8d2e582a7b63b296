"""Prints KV events as lines of JSON, decoded by the types that vLLM declares: kv_subscriber.py ENDPOINT TOPIC. Runs in
the environment of scripts/programs.sh dynamo. With REPLAY instead of TOPIC, "replay FROM", what the replay socket has."""

import json
import sys
from typing import Optional, Union

import msgspec
import zmq


class Event(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: Optional[str]


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


DECODER = msgspec.msgpack.Decoder(type=Batch)


def show(number, payload):
    batch = DECODER.decode(payload)
    assert batch.ts > 1.7e9 and batch.data_parallel_rank == 0, batch
    events = [{"type": type(event).__name__, **{name: getattr(event, name) for name in event.__struct_fields__}}
              for event in batch.events]
    print(json.dumps({"number": int.from_bytes(number, "big"), "events": events}), flush=True)


def main(endpoint, topic, start=None):
    context = zmq.Context()
    if topic == "replay":
        socket = context.socket(zmq.DEALER)  # there are many answers, where a REQ socket takes one
        socket.connect(endpoint)
        socket.send_multipart([b"", int(start).to_bytes(8, "big")])
        while True:
            _, number, payload = socket.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                return
            show(number, payload)
    socket = context.socket(zmq.SUB)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(endpoint)
    print(json.dumps("ready"), flush=True)
    while True:
        got, number, payload = socket.recv_multipart()
        assert got.decode() == topic
        show(number, payload)


main(*sys.argv[1:])
