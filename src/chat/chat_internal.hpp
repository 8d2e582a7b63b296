/* What the C++ files of this room share; no other file includes it.
 *
 * A request passes through turns: what the template is to see, after roles that it lacks have been replaced, system
 * texts merged, tools written out (generic.cpp) and user messages in a row joined (turns.cpp). Turns become Jinja
 * values and text (template.cpp), or, where `common` rewrites messages for a template, its own messages (format.cpp).
 *
 * Invariants. After hearth_chat_create() a hearth_chat changes only under `lock`, and only its list of formats. A
 * hearth_chat_format never changes but for its count. No exception leaves an extern "C" function: what may throw runs
 * in guarded(). */
#ifndef HEARTH_CHAT_CHAT_INTERNAL_HPP
#define HEARTH_CHAT_CHAT_INTERNAL_HPP

#include <chat.h> /* llama.cpp's, not this room's */

#include <chat-auto-parser.h>

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* functions with the names of structs: C has two name spaces */
#define _Noreturn [[noreturn]]            /* C's word */
extern "C" {
#include "base/assert.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/memory.h"
#include "chat/chat.h"
}
#undef _Noreturn
#pragma GCC diagnostic pop

/* What a reply to a request looks like. */
struct hearth_chat_format {
    std::atomic<size_t> refs{1};
    /* For common_chat_parse(): with the arena loaded and the generation prompt that it puts before the text. In a
     * continuation the generation prompt ends with the text that is continued; `is_continuation` is set then. */
    common_chat_parser_params parser;
    /* Every pointer in it points into `params` or into the arrays below. */
    struct hearth_chat_format_info info = {};
    common_chat_params params;
    bool short_ids = false;         /* as the chat's */
    std::vector<std::string> texts; /* patterns of triggers, parts of the syntax; reserved once, never moved */
    std::vector<struct hearth_chat_trigger> triggers;
    std::vector<const char *> preserved, stops, thinking_ends;
};

/* Owns one reference. */
struct format_release {
    void operator()(struct hearth_chat_format *format) const {
        ::hearth_chat_format_unref(format);
    }
};
using format_ptr = std::unique_ptr<struct hearth_chat_format, format_release>;

/* What was made, unless memory was refused on the way: then it was made some other way than it should be. */
template <typename T> T whole(T made) {
    if (hearth_memory_refused()) {
        throw std::bad_alloc();
    }
    return made;
}

struct cached_format {
    struct hearth_digest key;
    format_ptr format;
};

struct hearth_chat {
    std::string source;  /* Jinja text, or the name of a built-in format */
    std::string builtin; /* name of a built-in format that is code in llama.cpp; empty for Jinja */
    std::string bos;
    bool add_bos = false;
    bool native_developer = false;      /* the template knows the developer role */
    bool trim_contents = false;         /* the model was trained without white space around contents */
    bool preambles = false;             /* words in front of a call are a message of their own channel (gpt-oss) */
    bool specialised = false;           /* `common` has a parser of its own for the template */
    bool rewrites = false;              /* and prints other messages than it was given */
    std::string seam;                   /* what stands for a guard while a template runs (injection.cpp) */
    std::string quoted_seam;            /* the same in JSON of nothing but ASCII */
    std::vector<std::string> cut_words; /* that the template takes out of what it prints, or cuts it at */
    std::vector<std::string> members;   /* that it asks for by their names; sorted */
    struct hearth_chat_abilities abilities = {};
    std::string failure;                            /* abilities.failure */
    common_chat_templates_ptr templates;            /* for common_chat_templates_apply(); null: built-in */
    std::unique_ptr<common_chat_template> jinja;    /* the same, to be run here; null: built-in */
    std::unique_ptr<common_chat_template> analysed; /* the template without an end token, see analyse() */
    autoparser::autoparser analysis;                /* of the template; not complete: built-in or not to be analysed */
    std::mutex lock;
    std::list<cached_format> formats; /* latest first */
};

struct json_free {
    void operator()(json_t *value) const {
        json_decref(value);
    }
};
using json_ptr = std::unique_ptr<json_t, json_free>;

/* ---- errors (fault.cpp) ---- */

/* A request that cannot be kept: becomes HEARTH_ERR_INVALID. */
struct invalid_request : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* A cancel point has said that the work ends; no std::exception, so that nothing takes it for a template's error. */
struct interrupted {
    int err;
};
/* Cancel points (base/cancel.h) that throw it; the first for tight loops. */
inline void poll_cancel() {
    const int err = hearth_cancel_poll();
    if (err != HEARTH_OK) {
        throw interrupted{err};
    }
}
inline void check_cancel() {
    const int err = hearth_cancel_check();
    if (err != HEARTH_OK) {
        throw interrupted{err};
    }
}

/* Called inside a catch block: the exception in flight becomes a code and one line of text. */
int fail_in_flight(struct hearth_errmsg *msg, const struct hearth_chat *guarded = nullptr);

/* What a function of chat.h returns: the code of `run`, or that of what it throws. */
template <typename Run> int guarded(struct hearth_errmsg *msg, Run run, const struct hearth_chat *chat = nullptr) {
    try {
        return run();
    } catch (...) {
        return fail_in_flight(msg, chat);
    }
}

/* What a run of llama.cpp's code throws, in its words; none: it goes through. Want of memory and the end of the work go
 * on. */
template <typename Run> std::optional<std::string> fault_of(Run run) {
    try {
        run();
        return std::nullopt;
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &e) {
        return e.what();
    }
}

/* What does not compile in a template, with its line; empty: all of it does. */
std::string template_fault(const std::string &source);
/* What a template failed with while it ran, in one line, with its line where that is known. */
std::string template_failure(const std::string &what);

/* ---- texts (text.cpp) ---- */

std::string_view without_outer_space(std::string_view content);
/* JSON text, and that of a string. Throws bad_alloc. */
std::string json_text(const json_t *value, size_t flags = JSON_COMPACT);
std::string json_quoted(const char *text);
/* One line of what llama.cpp says, without the drawings of source text. */
std::string one_line(const std::string &what);

/* ---- turns (turns.cpp) ---- */

/* One message as the template is to see it. The content lies in a message of the request or in turn_list::store. */
struct turn {
    enum hearth_role role;
    std::string_view content;
    /* Where in it the text of the first and the last of the client's messages begins. */
    size_t first_at = std::string_view::npos, last_at = std::string_view::npos;
    const struct hearth_message *message = nullptr; /* its reasoning, names, calls; null: none */
    size_t first_call = 0, call_count = 0;          /* calls of it that are not in the content */
    const struct hearth_call *answers = nullptr;    /* a result: the call that it answers; null: none that is known */
};

struct turn_list {
    std::vector<turn> turns;
    std::deque<std::string> store;              /* does not move what it holds, nor do these: */
    std::deque<struct hearth_message> messages; /* made here; what they point to is another message's or the store's */
    std::deque<std::vector<struct hearth_call>> calls;
    bool generic = false;   /* tools are in the texts, and nothing about them is left to be printed */
    bool short_ids = false; /* HEARTH_CHAT_IDS_SHORT */
    const struct hearth_chat *chat = nullptr;
    bool filled = false;    /* HEARTH_CHAT_SCHEMAS_FILLED */
    bool preambles = false; /* of the template */

    std::string_view keep(std::string text) {
        return store.emplace_back(std::move(text));
    }
};

/* The turns of a request in a form (enum hearth_chat_form). `count` messages of it: without the last one when that is
 * continued. */
turn_list turns_of(const struct hearth_chat &chat, const struct hearth_chat_request &request, size_t count,
                   unsigned form);
inline bool is_system_role(enum hearth_role role) {
    return role == HEARTH_ROLE_SYSTEM || role == HEARTH_ROLE_DEVELOPER;
}
/* Offset `at` moved `by`; npos stays. */
inline size_t moved(size_t at, size_t by) {
    return at == std::string_view::npos ? at : at + by;
}
/* Id and tool's name of a result, and the id of a call, as they are printed; empty: none. */
std::string result_id(const turn_list &list, const turn &result);
const char *result_name(const turn &result);
std::string call_id(const turn_list &list, const struct hearth_call &call);
/* The same for `common`. */
std::vector<common_chat_msg> common_messages(const turn_list &list);
std::vector<common_chat_tool> common_tools(const json_t *tools);

/* ---- forms (history_form.cpp) ---- */

/* The steps of turns_of() that a form asks for, each on the list that the one before left: before tools are written out
 * and calls split, and behind that. */
void form_before(turn_list &list, unsigned form);
void form_behind(turn_list &list, unsigned form);
/* The form for a template whose other abilities are known. `render`: what a request prints in a form; empty when the
 * template refuses. `*prints_schemas`: false when it refuses tools that are nothing out of the ordinary all the same.
 */
using render_fn = std::function<std::string(const struct hearth_chat_request &request, unsigned form)>;
unsigned find_form(const render_fn &render, bool *prints_schemas);

/* A short history to try a template with, a letter for each message: system, user, assistant; a call (c), a call with
 * words beside it (w), two calls (d), two with words (D); the result of the first (r), of the second (2), of some other
 * call (x). What messages say is told apart by their letters and numbers. */
struct history {
    static constexpr size_t most = 8;
    char texts[most][32] = {};
    struct hearth_message messages[most] = {};
    struct hearth_message *list[most] = {};
    struct hearth_call calls[2] = {};
    json_ptr arguments[2];
    size_t count;

    /* `known`: with thoughts, and with ids as every template takes them. */
    history(const char *letters, bool known);
    history(const history &) = delete;
    history &operator=(const history &) = delete;
    turn_list turns() const;
    /* What has to be found of a message in a prompt: its text, or that of its call. */
    const char *said(size_t i) const {
        return messages[i].call_count > 0 ? "hearth_first" : messages[i].content;
    }

  private:
    void fill(size_t i, char letter, bool known);
};
/* The tool that those calls are of. */
json_ptr history_tools();

/* ---- tools (tools.cpp) ---- */

/* Copies of tools with other parameters, which `change` makes of a tool's number and parameters; null: with their own.
 */
using change_fn = std::function<json_ptr(size_t i, const json_t *parameters)>;
json_ptr changed_tools(const json_t *tools, const change_fn &change);
/* Tools whose parameters are texts, all of them. */
json_ptr text_tools(const json_t *tools);
/* A copy of tools in which every property has a type, and every array items. */
json_ptr filled_tools(const json_t *tools);
/* The same where the template needs it, else the tools themselves; null stays null. */
json_ptr printable_tools(const struct hearth_chat &chat, json_ptr tools);

/* ---- generic tools (generic.cpp) ---- */

/* Whether a request has something to do with tools that the template could not print. */
bool generic_applies(const struct hearth_chat &chat, const struct hearth_chat_request &request);
/* Writes tools, calls and results out as text. */
void generic_rewrite(turn_list &list, const struct hearth_chat_request &request);
/* Makes of a format without tools one with them: its parser and its grammar. `turn_begin`: what the template begins a
 * reply with, without the text of a continued one. */
void generic_parser(common_chat_params &params, const autoparser::analyze_reasoning &reasoning,
                    const common_chat_templates_inputs &inputs, const std::string &turn_begin);
/* What a call begins with. */
extern const char *const generic_call_begin;

/* ---- rendering ---- */

struct text_range {
    size_t begin, end;
};

/* A rendered prompt with the ranges of it that are contents of messages, in order. */
struct rendered {
    std::string text;
    std::vector<text_range> input;
};

/* optimize.cpp: makes running a template cheaper without changing what it prints. */
void program_optimize(jinja::program &program);
/* program.cpp: a template's output for a request. */
rendered program_run(const struct hearth_chat &chat, const turn_list &list, const struct hearth_chat_request &request,
                     bool generation_prompt);

/* format.cpp: the prompt for templates for which `common` rewrites messages. */
std::string apply_prompt(const struct hearth_chat &chat, const turn_list &list,
                         const struct hearth_chat_request &request);
/* format.cpp: whether the switch is on, after template arguments. */
bool thinking_of(const struct hearth_chat_request &request);

/* limits.cpp: throws invalid_request when a schema would take the grammar builder too far. `where` names it. */
void check_limits(const json_t *schema, const std::string &where);

/* injection.cpp: a request in which seams stand where guards belong. Where it has no text of a special token, it is the
 * original itself. */
struct guarded_request {
    struct hearth_chat_request request;
    std::deque<std::string> store;
    std::deque<struct hearth_message> copies; /* what they point to is another message's or the store's */
    std::deque<std::vector<struct hearth_call>> calls;
    std::vector<json_ptr> values;
    std::vector<struct hearth_message *> messages;

    guarded_request(const struct hearth_chat &chat, const struct hearth_chat_request &original,
                    const struct hearth_chat_format &format);
    bool sewn() const {
        return !copies.empty() || !values.empty();
    }
};
std::string make_seam();
std::string quoted_seam(const std::string &seam);
/* Takes out seams, and one that was begun at the end; returns the new length. Allocates nothing. */
size_t drop_seams(const struct hearth_chat &chat, char *text, size_t len);
/* Makes guards of the seams in a prompt, where they are in the text of a special token, and moves the marks. */
void place_guards(const struct hearth_chat &chat, const struct hearth_specials *specials,
                  struct hearth_chat_prompt &prompt);

/* names.cpp: the words that a template takes out of texts, or cuts them at; and the members that it may ask for. Both
 * sorted. */
std::vector<std::string> cut_words_of(const std::string &source);
std::vector<std::string> members_of(const std::string &source);

/* marks.cpp */
void find_head_end(const rendered &prompt, const struct hearth_chat_request &request, struct hearth_chat_prompt &out);
size_t find_system_end(const rendered &prompt, const turn_list &list);
size_t find_last_input(const rendered &prompt, const turn_list &list);

/* ---- grammar.cpp ---- */

/* The schema that stands for one in the grammar; the schema itself when there is none. What has to be kept to the
 * letter has been refused before; an ordinary tool's parameters are then kept as well as the grammar builder can. */
json_ptr strengthened(const json_t *schema);
/* The schema itself if the builder takes it, else a stronger one. Throws when there is none. */
json_ptr buildable(const json_t *schema, const std::string &where);
/* Tools with strengthened parameters; those of `otherwise` where there are none. */
json_ptr strengthened_tools(const json_t *tools, const json_t *otherwise);
/* What an empty schema stands for here: any object. Another one is itself. */
json_ptr or_any_object(const json_t *schema);
/* Throws invalid_request for a grammar that cannot be read; `name` says which. An empty text is none. */
void check_llama_grammar(const std::string &grammar, const char *name);
/* A schema's grammar, as the builder makes it. */
std::string schema_grammar(const json_t *schema);
/* A grammar made with strengthened schemas, with its ranges in place. */
std::string filled(const std::string &grammar);
/* The grammar of replies that are either what a schema's grammar says or calls, in the places of the former: where the
 * template's analysis has put it, behind reasoning, or for the whole. `entry`: the rule of the calls' grammar that is
 * nothing but calls, and at least one. */
std::string with_calls(std::string schema, const std::string &calls, const char *entry);

#endif
