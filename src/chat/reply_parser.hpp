/* What the text of a reply says so far. Only the reply files of this room include it. */
#ifndef HEARTH_CHAT_REPLY_PARSER_HPP
#define HEARTH_CHAT_REPLY_PARSER_HPP

#include "chat/chat_internal.hpp"

#include <array>
#include <chat-peg-parser.h>

/* Texts that end a place where any text may stand. */
struct delimiter_set {
    std::vector<std::string> texts;
    std::array<bool, 256> first{}; /* first bytes of the texts */

    void add_delimiter(const std::string &text);
    /* The first position at or behind `from` where one of them begins, or may begin when more text comes; `*whole` is
     * whether it stands there in full. The text's size when there is none. */
    size_t find_next(std::string_view text, size_t from, bool *whole) const;
};

/* Follows a JSON value from its first byte. */
struct json_scanner {
    size_t depth = 0;
    bool in_string = false, escaped = false;

    /* Where the value that has begun ends (one past its last byte), or npos while it goes on. */
    size_t scan_value(std::string_view text, size_t from);
};

/* The open end of a text: what comes next goes on with one field of the message, byte by byte, until a delimiter or the
 * end of a JSON value. No parse is needed up to there. */
enum class end_kind { none, text, value };
enum class end_field { reasoning, content, arguments };
struct open_end {
    end_kind kind = end_kind::none;
    end_field field = end_field::content;
    bool escaped = false;                      /* the text goes into a JSON string */
    const delimiter_set *delimiters = nullptr; /* end_kind::text; owned by the reader */
    size_t start = 0, len = 0;                 /* the value so far, as the parser takes it */
};

enum class fit { unfit, open, whole };
enum class part { none, content, reasoning, call };

struct reply_reading {
    fit state = fit::unfit;
    common_chat_msg message;
    open_end end;
    /* The last part of the text that the message shows, and where it ends; and the same without a last call that has
     * not been closed. What follows may be the beginning of anything. */
    struct delimiter_claim {
        part what = part::none;
        size_t end = 0;
    } claimed, before_call;
    size_t call_nodes = 0;    /* calls in the text, with or without a name so far */
    bool call_closed = false; /* the last of them has its closing mark */
};

/* Reads texts of one format. Immutable, so any thread. The text includes the format's generation prompt. */
class reply_reader {
  public:
    explicit reply_reader(const struct hearth_chat_format &format);

    reply_reading read_reply(const std::string &text) const;
    /* Whether the text may be the beginning of a reply. */
    bool can_read(const std::string &text) const;
    /* The text may end in the beginning of a delimiter: `unfit` may be undone by more text. */
    bool may_be_undone(std::string_view text) const;
    /* Where what only closes a call or reasoning that ends at `from` has ended. `partly`: the text may end inside. */
    size_t skip_closers(std::string_view text, size_t from, bool partly) const;

  private:
    void collect_delimiters(const common_peg_arena &arena);
    const delimiter_set *free_text(const common_peg_arena &arena, common_peg_parser_id id, delimiter_set &out) const;
    void find_open_end(const common_peg_ast_arena &ast, common_peg_ast_id id, size_t size, reply_reading &out) const;

    const struct hearth_chat_format &format_;
    struct free_place {
        bool free = true; /* every such node is text up to a delimiter */
        delimiter_set delimiters;
    };
    free_place content_, reasoning_, string_value_, gemma_string_;
    delimiter_set all_;                /* of every place */
    std::vector<std::string> closers_; /* markup of the format that does not begin a call */
};

/* The parser recurses into nested values: text that nests deeper than this is not given to it. */
constexpr size_t k_max_nesting = 256;

/* Follows a text and finds where a value that begins anywhere in it nests too deep. Values may begin at any bracket, in
 * front of or inside of what looks like a string; so all ways to read the text are followed at once, by state. */
class nesting_guard {
  public:
    explicit nesting_guard(bool gemma) : gemma_(gemma) {
    }
    /* Reads on to the end of the text. True: it nests too deep, at at(). */
    bool too_deep(std::string_view text);
    size_t at() const {
        return at_;
    }

  private:
    void count_depth(std::string_view text);
    bool gemma_;
    size_t pos_ = 0, at_ = std::string::npos;
    /* Deepest value in each state; -1 when there is none. The strings: "…" and '…', each with its escape, and Gemma's.
     */
    enum { OUTSIDE, DOUBLE, DOUBLE_ESCAPE, SINGLE, SINGLE_ESCAPE, GEMMA, STATES };
    std::array<int, STATES> depth_{-1, -1, -1, -1, -1, -1};
};

#endif
