"""Sends, receives and settles with the client that openapi-python-client makes of the description.

usage: python3 use.py URL
"""

import io
import sys

from hapax_api import Client
from hapax_api.api.keys import get_key, redrive
from hapax_api.api.queues import delete_queue, get_queue, put_queue
from hapax_api.api.sending import send_batch, send_message
from hapax_api.api.working import receive, settle
from hapax_api.models import (
    AnswerAccepted,
    AnswerDone,
    AnswerError,
    Batch,
    BatchAnswers,
    Blob,
    Code,
    Key,
    Message,
    OnLost,
    Problem,
    Queue,
    QueueConfig,
    Receive,
    Received,
    RedriveKeys,
    RedriveProgress,
    Settle,
    SettleDone,
    SettleDoneDo,
    SettledLeaseLost,
    SettledOk,
    SettleExtend,
    SettleExtendDo,
    SettleFail,
    SettleFailDo,
    SettleRelease,
    SettleReleaseDo,
    Settles,
    SettleSave,
    SettleSaveDo,
    State,
)
from hapax_api.types import File

QUEUE = "python"


def send(client: Client, key: str, body: bytes) -> object:
    """The body of the request is the message, as it is."""
    file = File(payload=io.BytesIO(body))
    return send_message.sync(
        QUEUE, client=client, body=file, idempotency_key=key, hapax_ttl_ms=600_000
    )


def main() -> None:
    client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)
    config = QueueConfig(on_lost=OnLost.PARK, max_attempts=2, retention_ms=None)
    created = put_queue.sync_detailed(QUEUE, client=client, body=config)
    assert created.status_code == 201 and isinstance(created.parsed, Queue), created
    assert created.parsed.config.lease_ms == 30_000, created

    first = send(client, "order-42", b"three lemons")
    assert isinstance(first, AnswerAccepted) and first.state == State.READY, first
    messages = [Message(key="order-42", body="four"), Message(key="order-43", body_base64="/w==")]
    batch = send_batch.sync(QUEUE, client=client, body=Batch(messages=messages))
    assert isinstance(batch, BatchAnswers), batch
    conflict, accepted = batch.answers
    assert isinstance(conflict, AnswerError) and conflict.code == Code.CONFLICT, batch
    assert isinstance(accepted, AnswerAccepted), batch

    wanted = Receive(max_=10, wait_ms=20_000, worker="python")
    received = receive.sync(QUEUE, client=client, body=wanted)
    assert isinstance(received, Received), received
    by_key = {message.key: message for message in received.messages}
    lemons, other = by_key["order-42"], by_key["order-43"]
    assert lemons.body == "three lemons", lemons
    assert lemons.content_type == "application/octet-stream", lemons
    assert other.body_base64 == "/w==" and not other.body, other
    assert (lemons.tenant, lemons.queue, lemons.lease_ms) == ("default", QUEUE, 30_000), lemons
    assert int(lemons.fence) > 0, lemons

    result = Blob(body="THREE LEMONS")
    items = Settle(
        items=[
            SettleSave(do=SettleSaveDo.SAVE, lease=lemons.lease, name="charged", body="ch_1"),
            SettleExtend(do=SettleExtendDo.EXTEND, lease=lemons.lease, lease_ms=60_000),
            SettleDone(do=SettleDoneDo.DONE, lease=lemons.lease, result=result),
            SettleFail(do=SettleFailDo.FAIL, lease=other.lease, error="rotten", dead=True),
            SettleRelease(do=SettleReleaseDo.RELEASE, lease=lemons.lease),
        ]
    )
    settled = settle.sync(QUEUE, client=client, body=items)
    assert isinstance(settled, Settles), settled
    assert all(isinstance(answer, SettledOk) for answer in settled.answers[:4]), settled
    lost = settled.answers[4]
    assert isinstance(lost, SettledLeaseLost) and isinstance(lost.result, Blob), settled
    assert lost.result.body == "THREE LEMONS", settled

    again = send(client, "order-42", b"three lemons")
    assert isinstance(again, AnswerDone) and isinstance(again.result, Blob), again
    assert again.result.body == "THREE LEMONS" and again.id == first.id, again
    key = get_key.sync(QUEUE, "order-43", client=client, wait_ms=0)
    assert isinstance(key, Key) and key.state == State.DEAD and key.error == "rotten", key
    redriven = redrive.sync(QUEUE, client=client, body=RedriveKeys(keys=["order-43"]))
    assert isinstance(redriven, RedriveProgress) and redriven.moved == 1, redriven
    unknown = get_queue.sync("nobody", client=client)
    assert isinstance(unknown, Problem) and unknown.code == Code.NO_SUCH_QUEUE, unknown
    gone = delete_queue.sync_detailed(QUEUE, client=client)
    assert gone.status_code == 204, gone
    print("the Python client sends, receives and settles")


main()
