/* Fuzzes what a client's schemas and grammars become. JSON as a schema must be refused, or made stronger and then a
 * grammar that hearth can follow; text as a grammar must be refused, or followed through any bytes. */
#include "fuzz.h"

#include "chat/chat.h"
#include "grammar/matcher.h"

/* Follows a grammar through bytes. Once dead it stays so, and a text that may end is alive. */
static void follow(struct hearth_grammar_gbnf *gbnf, const char *text, size_t len) {
    struct hearth_grammar_matcher *matcher;
    struct hearth_errmsg msg = {""};
    if (hearth_grammar_matcher_create(gbnf, &matcher, &msg) != HEARTH_OK) {
        HEARTH_ASSERT(matcher == NULL && msg.text[0] != '\0');
        return;
    }
    struct hearth_grammar_matcher_point point = hearth_grammar_matcher_start(matcher);
    for (size_t i = 0; i < len; i++) {
        const bool alive = hearth_grammar_matcher_byte(matcher, &point, (uint8_t)text[i]);
        HEARTH_ASSERT(alive == (point.state != HEARTH_GRAMMAR_MATCHER_DEAD));
        HEARTH_ASSERT(alive || !hearth_grammar_matcher_complete(matcher, &point));
        if (!alive) {
            HEARTH_ASSERT(!hearth_grammar_matcher_byte(matcher, &point, (uint8_t)text[i]));
            break;
        }
        if (i % 16 == 15) {
            hearth_grammar_matcher_compact(matcher, &point);
        }
    }
    hearth_grammar_matcher_destroy(matcher);
}

/* A grammar, and bytes that are to follow it. */
FUZZ_TARGET(gbnf) {
    struct fuzz_input input = {data, size};
    size_t grammar_len, text_len;
    struct hearth_grammar_gbnf *gbnf;
    struct hearth_errmsg msg = {""};
    char *grammar = fuzz_part(&input, &grammar_len), *text = fuzz_part(&input, &text_len);
    if (hearth_grammar_gbnf_parse(grammar, NULL, NULL, &gbnf, &msg) == HEARTH_OK) {
        HEARTH_ASSERT(gbnf->root < gbnf->rule_count);
        follow(gbnf, text, text_len);
    } else {
        HEARTH_ASSERT(gbnf == NULL && msg.text[0] != '\0');
    }
    free(grammar);
    free(text);
}

/* A schema, and bytes that are to follow its grammar. */
FUZZ_TARGET(schema) {
    struct fuzz_input input = {data, size};
    size_t schema_len, text_len;
    struct hearth_errmsg msg = {""};
    char *schema_text = fuzz_part(&input, &schema_len), *text = fuzz_part(&input, &text_len);
    json_t *schema = json_loadb(schema_text, schema_len, JSON_DECODE_ANY, NULL);
    json_t *strong = schema != NULL ? hearth_chat_schema_strengthen(schema, &msg) : NULL;
    HEARTH_ASSERT(schema == NULL || hearth_chat_schema_check(schema, NULL) == (strong != NULL));
    if (strong != NULL) {
        struct hearth_buf grammar = {0};
        struct hearth_grammar_gbnf *gbnf;
        /* What is made is made for the builder: it refuses nothing but sizes. */
        HEARTH_ASSERT(hearth_chat_schema_grammar(schema, &grammar, &msg) == HEARTH_OK);
        HEARTH_ASSERT(strstr((char *)grammar.data, "root ::=") != NULL);
        if (hearth_grammar_gbnf_parse((char *)grammar.data, NULL, NULL, &gbnf, &msg) == HEARTH_OK) {
            follow(gbnf, text, text_len);
        }
        hearth_buf_finish(&grammar);
    } else {
        HEARTH_ASSERT(schema == NULL || msg.text[0] != '\0');
    }
    json_decref(strong);
    json_decref(schema);
    free(schema_text);
    free(text);
}
