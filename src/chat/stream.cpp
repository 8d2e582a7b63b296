/* A reply as it grows: text in, deltas out, a message at the end.
 *
 * Design. Parsing all of the text at each token would cost the square of its length. So the text is parsed when it has
 * grown by a thirty-second of its length, and between parses it goes straight into the message wherever the last parse
 * ended in an open end (reply_parser.hpp): content, reasoning, a string value, or JSON arguments, up to the delimiter
 * that may close it. All together this is a constant times the length.
 *
 * What has been given out is `sent_`; a delta is what a reading adds to it, and a reading that does not go on from it
 * adds nothing: what was sent stays. When the text can no longer become a reply of the format, the longest beginning
 * that could is read, and everything behind it is content (`raw_`).
 *
 * Invariants. The deltas of each field concatenate to the field in `sent_`, which is the final message. Nothing is
 * parsed that nests too deep for the parser's recursion. No exception leaves this file. */
#include "chat/reply_parser.hpp"

#include <sys/random.h>

#include <cstring>

extern "C" {
#include "base/assert.h"
#include "base/utf8.h"
}

namespace {

constexpr size_t k_growth = 32; /* parse again when the text has grown by 1/32 */
constexpr size_t k_id_chars = 24, k_short_id_chars = 9;
constexpr const char *k_space = " \t\r\n\f\v";

static std::string make_call_id(bool is_short) {
    static constexpr char chars[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char random[k_id_chars];
    if (getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
        throw std::runtime_error("no random numbers");
    }
    std::string id = is_short ? "" : "call_";
    for (size_t i = 0; i < (is_short ? k_short_id_chars : k_id_chars); i++) {
        id += chars[random[i] % (sizeof chars - 1)];
    }
    return id;
}

static bool starts_with(std::string_view text, std::string_view beginning) {
    return text.compare(0, beginning.size(), beginning) == 0;
}

static bool ends_with(std::string_view text, std::string_view ending) {
    return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

/* Text as the inside of a JSON string. */
static std::string escaped(std::string_view text) {
    const std::string quoted = common_json(std::string(text)).dump();
    return quoted.substr(1, quoted.size() - 2);
}

static bool is_json(const std::string &text) {
    json_t *value = hearth_json_parse(text.data(), text.size(), JSON_DECODE_ANY | JSON_ALLOW_NUL, nullptr);
    json_decref(value);
    return value != nullptr;
}

static char *copy_text(const std::string &text) {
    char *copy = static_cast<char *>(malloc(text.size() + 1));
    if (copy == nullptr) {
        throw std::bad_alloc();
    }
    memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

/* Owned by the caller. */
static struct hearth_message *make_message(std::string_view content, std::string_view reasoning,
                                           const std::vector<common_chat_tool_call> &calls) {
    const std::unique_ptr<struct hearth_message, decltype(&hearth_message_unref)> message(
        hearth_message_create(HEARTH_ROLE_ASSISTANT), hearth_message_unref);
    if (message == nullptr) {
        throw std::bad_alloc();
    }
    message->content = copy_text(std::string(content));
    message->content_len = content.size();
    message->reasoning = reasoning.empty() ? nullptr : copy_text(std::string(reasoning));
    if (!calls.empty() && !hearth_message_alloc_calls(message.get(), calls.size())) {
        throw std::bad_alloc();
    }
    for (size_t i = 0; i < calls.size(); i++) {
        message->calls[i].id = calls[i].id.empty() ? nullptr : copy_text(calls[i].id);
        message->calls[i].name = copy_text(calls[i].name);
        message->calls[i].arguments = copy_text(calls[i].arguments);
    }
    if (!hearth_message_seal(message.get())) {
        throw std::bad_alloc();
    }
    return hearth_message_ref(message.get());
}

/* Where deltas go; `each` may be null. */
struct delta_sink {
    hearth_chat_delta_fn *each;
    void *user;

    void give(const struct hearth_chat_delta &delta) const {
        if (each != nullptr) {
            each(user, &delta);
        }
    }
};

constexpr struct hearth_chat_delta k_nothing = {nullptr, nullptr, 0,       0, HEARTH_CHAT_NO_CALL,
                                                nullptr, nullptr, nullptr, 0};

} // namespace

struct hearth_chat_stream {
  public:
    hearth_chat_stream(struct hearth_chat_format *format, bool deltas);

    void feed(std::string_view piece, const delta_sink &to);
    void end_stream(bool cut, const delta_sink &to);
    /* Owned by the caller. */
    struct hearth_message *message(bool ids) const;
    bool repaired() const {
        return repaired_;
    }
    /* Reads it all at once, strictly. False: it is not a reply of the format. */
    bool read_whole(std::string_view reply);

  private:
    void give_text(end_field field, std::string_view text, const delta_sink &to, size_t call = HEARTH_CHAT_NO_CALL);
    void give_content(std::string_view text, const delta_sink &to) {
        give_text(end_field::content, text, to);
    }
    void give(const reply_reading &now, bool all, const delta_sink &to);
    void continue_call(const delta_sink &to);
    void begin_call(const reply_reading &now);
    reply_reading read_text(const std::string &text);
    size_t longest_fitting();
    bool drop_open_call(reply_reading &now) const;
    std::string_view take_rest(reply_reading &now, bool fits) const;
    void salvage(bool cut, const delta_sink &to);

    format_ptr format_;
    reply_reader reader_;
    nesting_guard nesting_;
    bool deltas_, plain_;
    bool raw_ = false; /* the rest is content, whatever it is */
    bool repaired_ = false;
    std::string text_;       /* generation prompt and reply */
    size_t base_;            /* length of the generation prompt */
    size_t parsed_ = 0;      /* length of the text at the last parse */
    common_chat_msg sent_;   /* what the client has: `prompt_` and the deltas */
    common_chat_msg prompt_; /* what the generation prompt says that the client has sent itself */
    open_end end_;
    json_scanner json_;
    size_t taken_ = 0, scanned_ = 0; /* open end: how much of the text has been sent, and seen by `json_` */
};

hearth_chat_stream::hearth_chat_stream(struct hearth_chat_format *format, bool deltas)
    : format_(hearth_chat_format_ref(format)), reader_(*format),
      nesting_(format->parser.format == COMMON_CHAT_FORMAT_PEG_GEMMA4), deltas_(deltas), plain_(format->info.plain),
      text_(format->parser.generation_prompt), base_(text_.size()) {
    if (!plain_ && format->parser.is_continuation) {
        const reply_reading start = read_text(text_);
        prompt_.content = start.message.content;
        prompt_.reasoning_content = start.message.reasoning_content;
        sent_ = prompt_;
    }
}

/* ------------------------------------------------------------------------------------------------- giving out */

void hearth_chat_stream::give_text(end_field field, std::string_view text, const delta_sink &to, size_t call) {
    struct hearth_chat_delta delta = k_nothing;
    if (text.empty()) {
        return;
    }
    if (field == end_field::content) {
        sent_.content += text;
        delta.content = text.data();
        delta.content_len = text.size();
    } else if (field == end_field::reasoning) {
        sent_.reasoning_content += text;
        delta.reasoning = text.data();
        delta.reasoning_len = text.size();
    } else {
        sent_.tool_calls[call].arguments += text;
        delta.call = call;
        delta.arguments = text.data();
        delta.arguments_len = text.size();
    }
    to.give(delta);
}

/* What a reading adds. A call's name waits for the first of its arguments, since an id may stand between them. */
void hearth_chat_stream::give(const reply_reading &now, bool all, const delta_sink &to) {
    const common_chat_msg &message = now.message;
    if (starts_with(message.reasoning_content, sent_.reasoning_content)) {
        give_text(end_field::reasoning,
                  std::string_view(message.reasoning_content).substr(sent_.reasoning_content.size()), to);
    }
    if (starts_with(message.content, sent_.content)) {
        give_content(std::string_view(message.content).substr(sent_.content.size()), to);
    }
    for (size_t i = 0; i < message.tool_calls.size(); i++) {
        const common_chat_tool_call &call = message.tool_calls[i];
        if (i == sent_.tool_calls.size()) {
            const bool last = i + 1 == message.tool_calls.size();
            if (call.name.empty() || (last && !all && call.id.empty() && call.arguments.size() <= 1)) {
                break;
            }
            sent_.tool_calls.push_back({call.name, "", call.id.empty() ? make_call_id(format_->short_ids) : call.id});
            struct hearth_chat_delta delta = k_nothing;
            delta.call = i;
            delta.call_id = sent_.tool_calls[i].id.c_str();
            delta.call_name = sent_.tool_calls[i].name.c_str();
            to.give(delta);
        }
        const std::string &before = sent_.tool_calls[i].arguments;
        if (call.name == sent_.tool_calls[i].name && starts_with(call.arguments, before)) {
            give_text(end_field::arguments, std::string_view(call.arguments).substr(before.size()), to, i);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- growing */

/* Takes up the open end of a reading, when all that it says has been sent. */
void hearth_chat_stream::begin_call(const reply_reading &now) {
    end_ = open_end{};
    const common_chat_msg &message = now.message;
    const size_t calls = sent_.tool_calls.size();
    std::string_view sent = sent_.content;
    if (now.end.field == end_field::reasoning) {
        sent = sent_.reasoning_content;
    } else if (now.end.field == end_field::arguments) {
        if (calls == 0 || calls != message.tool_calls.size() || now.call_nodes > calls) {
            return;
        }
        sent = sent_.tool_calls.back().arguments;
    }
    /* Before the first byte of a text the parser may still skip white space, and reasoning of nothing else is dropped.
     */
    const bool begun = now.end.len > 0 && (now.end.field != end_field::reasoning || !sent.empty());
    const std::string_view value = std::string_view(text_).substr(now.end.start);
    if (now.end.kind == end_kind::text && begun &&
        ends_with(sent, now.end.escaped ? '"' + escaped(value) : std::string(value))) {
        end_ = now.end;
        taken_ = text_.size();
    } else if (now.end.kind == end_kind::value) {
        std::string_view shown = value.substr(0, now.end.len);
        if (!ends_with(sent, shown)) {
            shown = shown.substr(0, shown.find_last_not_of(k_space) + 1); /* which the parser leaves out of arguments */
        }
        json_ = json_scanner{};
        if (ends_with(sent, shown) && json_.scan_value(text_, now.end.start) == std::string::npos) {
            end_ = now.end;
            taken_ = now.end.start + shown.size();
            scanned_ = text_.size();
        }
    }
}

/* Sends what has come in at the open end, and closes it when its value ends. */
void hearth_chat_stream::continue_call(const delta_sink &to) {
    const std::string_view text = text_;
    size_t until = text.size();
    bool closed = false;
    if (end_.kind == end_kind::text) {
        until = end_.delimiters->find_next(text, taken_, &closed);
    } else {
        const size_t end = json_.scan_value(text, scanned_);
        closed = end != std::string::npos;
        until = closed ? end : until;
        scanned_ = text.size();
    }
    const std::string_view piece = text.substr(taken_, until - taken_);
    taken_ = until;
    give_text(end_.field, end_.escaped && !piece.empty() ? escaped(piece) : std::string(piece), to,
              sent_.tool_calls.size() - 1);
    if (closed) {
        end_ = open_end{};
    }
}

void hearth_chat_stream::feed(std::string_view piece, const delta_sink &to) {
    text_ += piece;
    if (!deltas_) {
        return;
    }
    if (plain_ || raw_) {
        give_content(piece, to);
        return;
    }
    if (end_.kind != end_kind::none) {
        continue_call(to);
    }
    if (end_.kind != end_kind::none || text_.size() - parsed_ <= (text_.size() - base_) / k_growth) {
        return;
    }
    parsed_ = text_.size();
    const reply_reading now = read_text(text_);
    if (now.state != fit::unfit) {
        give(now, false, to);
        begin_call(now);
    } else if (nesting_.too_deep(text_) || !reader_.may_be_undone(text_)) {
        salvage(false, to);
        raw_ = true;
    }
}

/* ------------------------------------------------------------------------------------------------- the end */

/* What `common` throws at, and what nests too deep for it, does not fit. */
reply_reading hearth_chat_stream::read_text(const std::string &text) {
    if (nesting_.too_deep(text_)) {
        return reply_reading{};
    }
    reply_reading now;
    (void)fault_of([&] { now = reader_.read_reply(text); });
    return now;
}

/* How much of a text that does not fit still may be the beginning of a reply. */
size_t hearth_chat_stream::longest_fitting() {
    size_t low = base_, high = nesting_.too_deep(text_) ? nesting_.at() : text_.size();
    if (high <= low || !reader_.can_read(text_.substr(0, low))) {
        return low;
    }
    while (low < high) {
        const size_t middle = low + (high - low + 1) / 2;
        if (reader_.can_read(text_.substr(0, middle))) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return hearth_utf8_complete(text_.data(), low);
}

/* Takes a last call that was not closed out of the message, unless the client has it already. */
bool hearth_chat_stream::drop_open_call(reply_reading &now) const {
    std::vector<common_chat_tool_call> &calls = now.message.tool_calls;
    const bool unnamed = now.call_nodes > calls.size();
    const bool open = now.state == fit::open && now.call_nodes > 0 && !now.call_closed &&
                      (unnamed || !is_json(calls.back().arguments));
    if (open && (unnamed || sent_.tool_calls.size() < calls.size())) {
        if (!unnamed) {
            calls.pop_back();
        }
        now.claimed = now.before_call;
        now.call_nodes = calls.size();
    }
    return open;
}

/* What stands behind the last part that the message shows. What belongs to that part goes there. */
std::string_view hearth_chat_stream::take_rest(reply_reading &now, bool fits) const {
    const std::string_view text = text_;
    const size_t from = std::max({now.claimed.end, base_, taken_}); /* an open end may have been taken further */
    switch (now.claimed.what) {
    case part::reasoning: {
        const size_t behind = reader_.skip_closers(text, from, fits);
        if (behind < text.size() || !reader_.may_be_undone(text)) {
            return text.substr(behind);
        }
        now.message.reasoning_content += text.substr(from); /* half a closing tag may be something else */
        return {};
    }
    case part::call: return text.substr(reader_.skip_closers(text, from, fits));
    case part::content:
    case part::none: break;
    }
    return text.substr(from);
}

/* Makes the best of the text as it stands. */
void hearth_chat_stream::salvage(bool cut, const delta_sink &to) {
    reply_reading now = read_text(text_);
    const bool unfit = now.state == fit::unfit;
    if (unfit) {
        const size_t shown = longest_fitting();
        now = shown > base_ ? reader_.read_reply(text_.substr(0, shown)) : reply_reading{};
    }
    const bool open = drop_open_call(now);
    const bool kept = open && now.call_nodes > 0 && now.call_nodes == sent_.tool_calls.size();
    std::string_view rest;
    if (!kept) {
        rest = take_rest(now, !unfit);
    } else if (unfit) {
        rest = std::string_view(text_).substr(std::max({now.claimed.end, base_, taken_}));
    }
    give(now, true, to);
    give_content(rest, to);
    const bool leftover = !rest.empty() && now.claimed.what != part::content;
    repaired_ = unfit || open || (leftover && (!cut || now.state == fit::whole));
}

void hearth_chat_stream::end_stream(bool cut, const delta_sink &to) {
    if (plain_) {
        give_content(deltas_ ? std::string_view() : std::string_view(text_).substr(base_), to);
    } else if (!raw_) {
        salvage(cut, to);
    }
}

bool hearth_chat_stream::read_whole(std::string_view reply) {
    text_ += reply;
    if (plain_) {
        end_stream(false, delta_sink{});
        return true;
    }
    reply_reading now = read_text(text_);
    if (now.state == fit::unfit || drop_open_call(now)) {
        return false;
    }
    const std::string_view rest = take_rest(now, true);
    now.message.content += rest;
    sent_ = now.message;
    return true;
}

struct hearth_message *hearth_chat_stream::message(bool ids) const {
    const auto behind = [](const std::string &text, const std::string &prompt) {
        return std::string_view(text).substr(starts_with(text, prompt) ? prompt.size() : 0);
    };
    std::vector<common_chat_tool_call> calls = sent_.tool_calls;
    for (common_chat_tool_call &call : calls) {
        call.id = ids ? call.id : "";
    }
    return make_message(behind(sent_.content, prompt_.content),
                        behind(sent_.reasoning_content, prompt_.reasoning_content), calls);
}

/* ------------------------------------------------------------------------------------------------- chat.h */

extern "C" {

int hearth_chat_parse(const struct hearth_chat_format *format, const char *text, size_t len,
                      struct hearth_message **out, struct hearth_errmsg *msg) {
    *out = nullptr;
    return guarded(msg, [&]() -> int {
        hearth_chat_stream stream(const_cast<struct hearth_chat_format *>(format), false);
        if (!stream.read_whole({text, len})) {
            return hearth_fail(msg, HEARTH_ERR_TEMPLATE, "the text is not a reply of the template's format");
        }
        *out = stream.message(false);
        return HEARTH_OK;
    });
}

struct hearth_chat_stream *hearth_chat_stream_create(struct hearth_chat_format *format, bool deltas) {
    try {
        return new hearth_chat_stream(format, deltas);
    } catch (...) {
        return nullptr;
    }
}

void hearth_chat_stream_destroy(struct hearth_chat_stream *stream) {
    delete stream;
}

int hearth_chat_stream_feed(struct hearth_chat_stream *stream, const char *text, size_t len, hearth_chat_delta_fn *each,
                            void *user) {
    return guarded(nullptr, [&] {
        stream->feed({text, len}, delta_sink{each, user});
        return HEARTH_OK;
    });
}

int hearth_chat_stream_end(struct hearth_chat_stream *stream, bool cut, hearth_chat_delta_fn *each, void *user,
                           struct hearth_message **out, bool *repaired) {
    *out = nullptr;
    *repaired = false;
    return guarded(nullptr, [&] {
        stream->end_stream(cut, delta_sink{each, user});
        *out = stream->message(true);
        *repaired = stream->repaired();
        return HEARTH_OK;
    });
}

} /* extern "C" */
