/* See poison.h. A history is JSON in which @ and a letter stand for the places; one of them has the poison at a time,
 * and the number of special tokens in the prompt must be that of the same history with harmless words. Markup
 * ("<tool_call>") is text in what users, tools and results say; system texts and the assistant's may hold it. */
#include "support/poison.h"
#include "support/markers.h"
#include "support/messages.h"

#include "base/assert.h"
#include "base/buf.h"
#include "session/specials.h"

static const struct place {
    char letter;
    bool reply, markup; /* the marks of thinking stay; markup is text */
    const char *what;
} places[] = {{'s', false, false, "system"},           {'u', false, true, "user"},
              {'a', true, false, "assistant"},         {'t', false, false, "reasoning"},
              {'v', false, false, "argument"},         {'k', false, false, "argument's name"},
              {'n', false, false, "call's name"},      {'r', false, true, "result"},
              {'l', false, true, "last result"},       {'d', false, true, "tool's description"},
              {'p', false, true, "parameter"},         {'f', false, true, "tool's name"},
              {'x', false, true, "template argument"}, {'e', true, false, "later reply"},
              {'w', false, true, "question"},          {'i', false, true, "call's id"}};

/* How a text of a special token is told. */
enum telling {
    PLAIN,
    CUT,    /* with words in it that the template takes out */
    CASED,  /* in letters that the template makes others of */
    FRAMED, /* as a name, without the brackets that the template prints around it */
    TELLINGS
};
static const char *const tellings[] = {"", ", cut", ", in other letters", ", framed"};

static const struct place names[] = {{'q', false, true, "name in a parameter"},
                                     {'z', false, true, "name of an argument"}};

static const char history[] =
    "[{'role':'system','content':'System @s'},{'role':'user','content':'@u question'},"
    "{'role':'assistant','content':'Words @a.','reasoning_content':'I think @t so','tool_calls':[{'id':'call00001@i',"
    "'type':'function','function':{'name':'read@n',"
    "'arguments':'{\\\"path@k\\\":\\\"a @v b\\\",\\\"@z\\\":\\\"c\\\"}'}}]},"
    "{'role':'tool','tool_call_id':'call00001@i','content':'Result @r'},"
    "{'role':'assistant','content':'@e Then.'},{'role':'user','content':'And @w?'},"
    "{'role':'assistant','content':'','tool_calls':[{'id':'call00002','type':'function','function':{'name':'read',"
    "'arguments':'{\\\"path\\\":\\\"b\\\"}'}}]},{'role':'tool','tool_call_id':'call00002','content':'@l'}]";
static const char tools_text[] =
    "[{'type':'function','function':{'name':'read@f','description':'Reads @d','parameters':{'type':'object',"
    "'properties':{'path':{'type':'string','description':'A path @p','@q':'y'}},'required':['path']}}}]";
static const char kwargs_text[] = "{'reasoning_effort':'high@x','date_string':'today @x','documents':[{'text':'@x'}]}";

/* `poison` stands at the place, and `harmless` at the others. */
static char *fill(const char *text, const struct place *place, const char *poison) {
    struct hearth_buf out = {0};
    for (const char *at = text; *at != '\0'; at++) {
        const bool here = *at == '@' && at[1] == place->letter;
        const char *instead = here ? poison : *at == '@' ? "zz" : NULL;
        HEARTH_ASSERT(instead != NULL ? hearth_buf_text(&out, instead) : hearth_buf_append(&out, at, 1));
        at += *at == '@';
    }
    HEARTH_ASSERT(hearth_buf_append(&out, "", 1));
    return (char *)hearth_buf_take(&out);
}

static bool is_thinking(const struct hearth_chat_format_info *info, const char *text) {
    bool same = strstr(info->thinking_start, text) != NULL;
    for (size_t i = 0; i < info->thinking_end_count; i++) {
        same = same || strstr(info->thinking_ends[i], text) != NULL;
    }
    return same;
}

/* Words that templates take out of what is said, and the thoughts of replies. */
static const char *cut_word(const struct place *place, size_t i) {
    static const char *const words[] = {"/think", "/no_think", "/no_/thinkthink", "<|channel>thought\\nx<channel|>"};
    return i < 3 || (i == 3 && place->reply) ? words[i] : NULL;
}

static void tell_cut(const struct place *place, const char *text, struct hearth_buf *out) {
    const char *word;
    for (size_t i = 0; (word = cut_word(place, i)) != NULL; i++) {
        HEARTH_ASSERT(hearth_buf_printf(out, "x%.1s%s%s ", text, word, text + 1));
    }
}

static void tell_cased(const char *text, struct hearth_buf *out) {
    HEARTH_ASSERT(hearth_buf_text(out, "x"));
    for (const char *at = text; *at != '\0'; at++) {
        const bool letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z');
        HEARTH_ASSERT(hearth_buf_append(out, &(const char){(char)(letter ? *at ^ 0x20 : *at)}, 1));
    }
    HEARTH_ASSERT(hearth_buf_text(out, " "));
}

/* All of them, or the one that is to be framed; empty: it has no brackets. `harmless`: other words instead. */
static char *make_poison(const struct hearth_chat_format *format, const struct place *place, enum telling telling,
                         size_t which, bool harmless) {
    struct hearth_buf out = {0};
    const size_t n = markers_count(place->markup);
    for (size_t i = telling == FRAMED ? which : 0; i < n && (telling != FRAMED || i == which); i++) {
        const char *text = harmless ? "zz" : markers_text(i);
        if (strpbrk(text, "'\"\\") != NULL ||
            (place->reply && is_thinking(hearth_chat_format_info(format), markers_text(i)))) {
            continue;
        }
        if (telling == PLAIN) {
            HEARTH_ASSERT(hearth_buf_printf(&out, "x%sy%s%s ", text, text, text));
        } else if (telling == CUT) {
            tell_cut(place, text, &out);
        } else if (telling == CASED) {
            tell_cased(text, &out);
        } else if (harmless) {
            HEARTH_ASSERT(hearth_buf_text(&out, text));
        } else if (text[0] == '<') {
            const size_t first = text[1] == '/' ? 2 : 1;
            HEARTH_ASSERT(hearth_buf_append(&out, text + first, strlen(text) - first - 1));
        }
    }
    HEARTH_ASSERT((telling == FRAMED || hearth_buf_text(&out, "!")) && hearth_buf_append(&out, "", 1));
    return (char *)hearth_buf_take(&out);
}

struct rendering {
    bool done;
    size_t special; /* tokens */
    char *text;     /* without guards */
};

static struct rendering render(struct hearth_chat *chat, const struct hearth_specials *specials, bool guarded,
                               const struct place *place, enum telling telling, size_t which, bool harmless) {
    struct rendering out = {.done = false};
    struct hearth_chat_format *format = NULL;
    struct hearth_chat_prompt prompt = {.text = {0}};
    struct hearth_tokens tokens = {0};
    struct hearth_errmsg msg;
    struct hearth_message question = {.role = HEARTH_ROLE_USER, .content = (char *)(uintptr_t)"x", .content_len = 1};
    struct hearth_message *first[] = {&question};
    struct hearth_chat_request request = {.messages = first,
                                          .message_count = 1,
                                          .tool_choice = HEARTH_TOOLS_AUTO,
                                          .thinking = true,
                                          .parallel_calls = true};
    HEARTH_ASSERT(hearth_chat_format_get(chat, &request, &format, &msg) == HEARTH_OK);
    char *poison = make_poison(format, place, telling, which, harmless);
    char *filled[] = {fill(history, place, poison), fill(tools_text, place, poison), fill(kwargs_text, place, poison)};
    struct messages list = messages_load(filled[0]);
    json_t *tools = messages_json(filled[1]), *kwargs = messages_json(filled[2]);
    request.messages = list.v;
    request.message_count = list.n;
    request.tools = tools;
    request.kwargs = kwargs;
    request.specials = guarded ? specials : NULL;
    int err = hearth_chat_render(chat, &request, format, &prompt, &msg);
    if (err != HEARTH_OK && json_object_del(kwargs, "reasoning_effort") == 0) { /* some know three words only */
        hearth_chat_prompt_finish(&prompt);
        err = hearth_chat_render(chat, &request, format, &prompt, &msg);
    }
    if (err == HEARTH_OK) {
        HEARTH_ASSERT(hearth_specials_tokenize(specials, (const char *)prompt.text.data, prompt.text.len, true,
                                               &tokens) == HEARTH_OK);
        for (size_t i = 0; i < tokens.n; i++) {
            out.special += markers_is(tokens.v[i]) ? 1 : 0;
        }
        prompt.text.len = hearth_guards_strip((char *)prompt.text.data, prompt.text.len);
        out.text = strndup((const char *)prompt.text.data, prompt.text.len);
        out.done = true;
    }
    hearth_tokens_finish(&tokens);
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_format_unref(format);
    messages_finish(&list);
    json_decref(tools);
    json_decref(kwargs);
    for (size_t i = 0; i < 3; i++) {
        free(filled[i]);
    }
    free(poison);
    return out;
}

/* `which`: of the markers, the one that is framed. */
static void try_place(struct hearth_chat *chat, const struct hearth_specials *specials, const char *name,
                      const struct place *place, enum telling telling, size_t which, size_t harmless,
                      struct poison_result *result) {
    const struct rendering with = render(chat, specials, true, place, telling, which, false);
    const struct rendering without = render(chat, specials, false, place, telling, which, false);
    if (with.done) {
        const bool open = with.special != harmless;
        if (open) {
            fprintf(stderr, "%s: %s%s: %zu special tokens, not %zu %s\n", name, place->what, tellings[telling],
                    with.special, harmless, telling == FRAMED ? markers_text(which) : "");
        }
        result->places++;
        result->open += open ? 1 : 0;
        result->without += !without.done || without.special != harmless ? 1 : 0;
        result->changed += without.done && strcmp(without.text, with.text) != 0 ? 1 : 0;
    }
    free(with.text);
    free(without.text);
}

/* A name can hold one marker at a time. */
static void try_places(struct hearth_chat *chat, const struct hearth_specials *specials, const char *name,
                       const struct place *place, enum telling telling, struct poison_result *result) {
    const struct rendering harmless = render(chat, specials, true, place, telling, 0, true);
    const size_t rounds = telling == FRAMED ? markers_count(place->markup) : 1;
    for (size_t which = 0; harmless.done && which < rounds; which++) {
        if (telling != FRAMED || markers_text(which)[0] == '<') {
            try_place(chat, specials, name, place, telling, which, harmless.special, result);
        }
    }
    free(harmless.text);
}

struct poison_result poison_try(struct hearth_engine *engine, struct hearth_chat *chat, const char *name) {
    struct poison_result result = {0};
    struct hearth_specials *specials = hearth_specials_create(engine, "", hearth_chat_template(chat));
    HEARTH_ASSERT(specials != NULL);
    for (enum telling telling = PLAIN; telling < TELLINGS; telling++) {
        const struct place *list = telling == FRAMED ? names : places;
        const size_t n = telling == FRAMED ? sizeof names / sizeof names[0] : sizeof places / sizeof places[0];
        for (size_t i = 0; i < n; i++) {
            try_places(chat, specials, name, &list[i], telling, &result);
        }
    }
    hearth_specials_destroy(specials);
    return result;
}
