/* What does not need the text of a grammar any more: sets in order, rules that the empty text follows, the end. */
#include "grammar/gbnf.h"

#include "base/memory.h"

#include <stdlib.h>

/* ---- sets ---- */

static int by_lo(const void *a, const void *b) {
    const struct hearth_grammar_gbnf_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

uint32_t hearth_grammar_gbnf_normalise(struct hearth_grammar_gbnf_range *ranges, uint32_t count) {
    if (count == 0) {
        return 0;
    }
    qsort(ranges, count, sizeof *ranges, by_lo);
    uint32_t kept = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (ranges[i].lo > ranges[kept].hi + 1) {
            ranges[++kept] = ranges[i];
        } else if (ranges[i].hi > ranges[kept].hi) {
            ranges[kept].hi = ranges[i].hi;
        }
    }
    return kept + 1;
}

/* ---- the empty text ---- */

/* A rule is nullable when an alternative is made of nullable rules only. Each alternative counts those it still waits
 * for; `users` lists, rule by rule, the alternatives that name it. So every name is looked at twice, whatever the order
 * of the rules. */
bool hearth_grammar_gbnf_find_nullable(struct hearth_grammar_gbnf *g) {
    uint32_t *waits = hearth_memory_calloc(g->alternative_count + 1u, sizeof *waits);
    uint32_t *owner = hearth_memory_malloc((g->alternative_count + 1u) * sizeof *owner);
    uint32_t *begin = hearth_memory_calloc(g->rule_count + 2u, sizeof *begin);
    uint32_t *users = hearth_memory_malloc((g->symbol_count + 1u) * sizeof *users);
    uint32_t *found = hearth_memory_malloc((g->rule_count + 1u) * sizeof *found), found_count = 0;
    bool ok = waits != NULL && owner != NULL && begin != NULL && users != NULL && found != NULL;
    for (int pass = 0; ok && pass < 2; pass++) {
        for (uint32_t r = 0; r < g->rule_count; r++) {
            for (uint32_t a = g->rules[r].first; a < g->rules[r].first + g->rules[r].count; a++) {
                owner[a] = r;
                for (uint32_t s = g->alternatives[a]; g->symbols[s].kind != HEARTH_GRAMMAR_GBNF_END; s++) {
                    if (g->symbols[s].kind != HEARTH_GRAMMAR_GBNF_RULE) {
                        waits[a] = UINT32_MAX / 2; /* for ever */
                    } else if (pass == 0) {
                        begin[g->symbols[s].value + 2]++;
                    } else {
                        users[begin[g->symbols[s].value + 1]++] = a;
                        waits[a]++;
                    }
                }
                if (pass == 1 && waits[a] == 0 && !g->rules[r].nullable) {
                    g->rules[r].nullable = true;
                    found[found_count++] = r;
                }
            }
        }
        for (uint32_t r = 0; pass == 0 && r < g->rule_count; r++) {
            begin[r + 2] += begin[r + 1];
        }
    }
    for (uint32_t i = 0; ok && i < found_count; i++) {
        for (uint32_t u = begin[found[i]]; u < begin[found[i] + 1]; u++) {
            uint32_t r = owner[users[u]];
            if (--waits[users[u]] == 0 && !g->rules[r].nullable) {
                g->rules[r].nullable = true;
                found[found_count++] = r;
            }
        }
    }
    free(waits);
    free(owner);
    free(begin);
    free(users);
    free(found);
    return ok;
}

/* ---- the end ---- */

void hearth_grammar_gbnf_destroy(struct hearth_grammar_gbnf *gbnf) {
    if (gbnf == NULL) {
        return;
    }
    free(gbnf->symbols);
    free(gbnf->ranges);
    free(gbnf->sets);
    free(gbnf->rules);
    free(gbnf->alternatives);
    free(gbnf);
}
