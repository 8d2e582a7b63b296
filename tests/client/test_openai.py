"""The official OpenAI SDK: what it sends is understood, what it gets back it understands."""

import concurrent.futures

import pytest

from conftest import sdk, serve

QUESTION = "What is the capital of France? Answer in one sentence."


def test_chat(chat, model):
    reply = chat(QUESTION)
    choice = reply.choices[0]
    assert reply.object == "chat.completion"
    assert reply.model == model
    assert reply.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens <= 16
    assert reply._request_id


@pytest.mark.language
@pytest.mark.llama
def test_chat_knows_the_answer(chat):
    assert "Paris" in chat(QUESTION).choices[0].message.content


def test_receipt_and_timings(chat):
    reply = chat("Tell me about receipts.")
    receipt, timings = reply.model_extra["hearth"], reply.model_extra["timings"]
    cached = reply.usage.prompt_tokens_details.cached_tokens
    assert receipt["computed"] == timings["prompt_n"] == reply.usage.prompt_tokens - cached
    assert receipt["reused"]["live"] + receipt["reused"]["ram"] == timings["cache_n"] == cached
    assert timings["predicted_n"] == reply.usage.completion_tokens
    assert receipt["reason"] and receipt["reason_text"]


def test_content_parts(chat):
    parts = [{"type": "text", "text": QUESTION}]
    assert chat([{"role": "user", "content": parts}]).usage.prompt_tokens == chat(QUESTION).usage.prompt_tokens


def test_tool_messages_in_the_history(chat):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}}
    reply = chat([{"role": "user", "content": "Look."},
                  {"role": "assistant", "content": "I look.", "tool_calls": [call]},
                  {"role": "tool", "tool_call_id": "call_1", "content": "a tree"}])
    assert reply.choices[0].message.content


def test_stream_is_the_reply_in_pieces(chat):
    whole = chat(QUESTION)
    chunks = list(chat(QUESTION, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert len(chunks) > 3


def test_stream_with_usage(chat):
    *chunks, last = chat(QUESTION, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.prompt_tokens > 0
    assert 0 < last.usage.completion_tokens <= 16
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.language
@pytest.mark.llama  # on sim the reply ends by its length, which the helper raises
def test_stream_helper(client, model):
    with client.chat.completions.stream(model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=8,
                                        temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(deltas) == stream.get_final_completion().choices[0].message.content


def test_two_choices(chat):
    reply = chat("Invent a name.", n=2, temperature=1.0, seed=3, max_tokens=24)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].message.content != reply.choices[1].message.content


def test_two_choices_streamed(chat):
    texts, ends = {0: "", 1: ""}, {}
    for chunk in chat("Invent a name.", n=2, temperature=1.0, seed=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts[0] and texts[1]
    assert set(ends) == {0, 1}


@pytest.mark.language
def test_logprobs(chat):
    choice = chat(QUESTION, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().startswith(choice.message.content)
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # temperature 0 takes the best
        assert [top.logprob for top in entry.top_logprobs] == sorted((top.logprob for top in entry.top_logprobs),
                                                                     reverse=True)


@pytest.mark.language
def test_logprobs_streamed(chat):
    entries, text = [], ""
    for chunk in chat(QUESTION, logprobs=True, stream=True):
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].logprobs:
            entries += chunk.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().startswith(text)


def test_stop(chat):
    text = chat(QUESTION, max_tokens=24).choices[0].message.content
    stop = text[len(text) // 2:][:3]
    for choice in (chat(QUESTION, stop=stop, max_tokens=24).choices[0],
                   chat(QUESTION, stop=["never to be seen", stop], max_tokens=24).choices[0]):
        assert choice.message.content == text[:text.index(stop)]
        assert choice.finish_reason == "stop"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(QUESTION, stop=stop, max_tokens=24,
                                                                               stream=True))
    assert streamed == text[:text.index(stop)]


def test_seed(engine_flags):
    """On a server of its own: where a prompt comes to lie among the cells of others changes the last digits of the
    logits, and with them now and then a token."""
    with serve(*engine_flags, "-c", "2048", "-np", "1") as running, sdk(running) as client:
        def roll(seed):
            return client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "Write a line of a poem."}], temperature=1.2, seed=seed,
                max_tokens=20, extra_body={"cache_prompt": False}).choices[0].message.content
        assert roll(7) == roll(7)
        assert len({roll(seed) for seed in range(5)}) > 1


def test_temperature_zero_repeats(chat):
    """With a clear best token everywhere: about equal ones may change places when the batch is split differently."""
    assert len({chat(QUESTION).choices[0].message.content for _ in range(4)}) == 1


def test_length(chat):
    choice = chat("Tell a long story.", max_tokens=5, extra_body={"ignore_eos": True}).choices[0]
    assert choice.finish_reason == "length"
    newer = chat("Tell a long story.", max_tokens=None, max_completion_tokens=5, extra_body={"ignore_eos": True})
    assert newer.usage.completion_tokens == 5


def test_more_tokens_than_the_context_holds_are_no_error(chat):
    assert chat(QUESTION, max_tokens=65536, stop=["."]).choices[0].message.content


def test_logit_bias(chat, server):
    text = chat(QUESTION, max_tokens=1).choices[0].message.content
    banned = {str(token): -100 for token in server.client.post("/tokenize", {"content": text})["tokens"]}
    assert chat(QUESTION, max_tokens=1, logit_bias=banned).choices[0].message.content != text


def test_completions(client, model):
    reply = client.completions.create(model=model, prompt="The capital of France is", max_tokens=6, temperature=0)
    assert reply.object == "text_completion"
    assert reply.choices[0].text
    tokens = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=2)
    assert tokens.usage.prompt_tokens == 3
    both = client.completions.create(model=model, prompt=["One, two,", "Red, green,"], max_tokens=2)
    assert [choice.index for choice in both.choices] == [0, 1]
    pieces = [chunk.choices[0].text for chunk in client.completions.create(
        model=model, prompt="The capital of France is", max_tokens=6, temperature=0, stream=True)]
    assert "".join(pieces) == reply.choices[0].text


def test_models(client, model):
    listed = client.models.list().data
    assert [entry.object for entry in listed] == ["model"]
    entry = client.models.retrieve(model)
    assert entry.id == model
    assert entry.model_extra["max_model_len"] == entry.model_extra["context_length"] == 4096


def test_concurrent_requests(chat, server):
    """Twice as many as there are lanes, each about something else."""
    def ask(number):
        reply = chat(f"Number {number} is a number. " * 8, max_tokens=8, extra_body={"ignore_eos": True})
        return reply.usage.completion_tokens
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [8] * 8
    assert server.client.wait_idle(60)


@pytest.mark.language
@pytest.mark.llama  # sim says what it likes, all of it ASCII here
def test_text_is_whole_characters(chat):
    """No piece of a stream ends inside a character: what is replaced is what the model itself broke."""
    text, data = "", b""
    for chunk in chat("Repeat: 你好，世界 🎉 ünïcödé 你好", stream=True, max_tokens=40, logprobs=True,
                      extra_body={"ignore_eos": True}):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        if choice.logprobs:
            data += b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert not data.isascii()
    assert text.rstrip("\ufffd") == data.decode(errors="replace").rstrip("\ufffd")
