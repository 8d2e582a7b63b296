/* Sim's tokenizer: bytes, a few hundred merges, three specials.
 *
 *   0 … 255        the bytes
 *   256 …          merges: words with a leading space, punctuation of JSON and code, runs of white space,
 *                  and a few that end inside a character, as those of real vocabularies do
 *   the last three <|im_start|>, <|im_end|>, <|endoftext|>
 *
 * Greedy longest match from left to right, found with a trie. It loses nothing: every byte is a token, so any text,
 * UTF-8 or not, comes back as it was. And it is not the inverse of drawing: the letters ' ', 't', 'h', 'e' drawn one by
 * one come back as the one token " the", as happens with every real tokenizer. */
#include "base/cancel.h"
#include "engine/sim_parts.h"

#include <string.h>

/* Matched in text, and drawn. */
static const char *const words[] = {
    " the",     " of",     " and",      " to",     " a",       " in",      " is",        " that",    " it",
    " was",     " for",    " on",       " are",    " as",      " with",    " his",       " they",    " I",
    " at",      " be",     " this",     " have",   " from",    " or",      " one",       " had",     " by",
    " word",    " but",    " not",      " what",   " all",     " were",    " we",        " when",    " your",
    " can",     " said",   " there",    " use",    " an",      " each",    " which",     " she",     " do",
    " how",     " their",  " if",       " will",   " up",      " other",   " about",     " out",     " many",
    " then",    " them",   " these",    " so",     " some",    " her",     " would",     " make",    " like",
    " him",     " into",   " time",     " has",    " look",    " two",     " more",      " write",   " go",
    " see",     " number", " no",       " way",    " could",   " people",  " my",        " than",    " first",
    " water",   " been",   " call",     " who",    " its",     " now",     " find",      " long",    " down",
    " day",     " did",    " get",      " come",   " made",    " may",     " part",      " over",    " new",
    " sound",   " take",   " only",     " little", " work",    " know",    " place",     " year",    " live",
    " me",      " back",   " give",     " most",   " very",    " after",   " thing",     " our",     " just",
    " name",    " good",   " sentence", " man",    " think",   " say",     " great",     " where",   " help",
    " through", " much",   " before",   " line",   " right",   " too",     " mean",      " old",     " any",
    " same",    " tell",   " boy",      " follow", " came",    " want",    " show",      " also",    " around",
    " form",    " three",  " small",    " set",    " put",     " end",     " does",      " another", " well",
    " large",   " must",   " big",      " even",   " such",    " because", " turn",      " here",    " why",
    " ask",     " went",   " men",      " read",   " need",    " land",    " different", " home",    " us",
    " move",    " try",    " kind",     " hand",   " picture", " again",   " change",    " off",     " play",
    " spell",   " air",    " away",     " animal", " house",   " point",   " page",      " letter",  " mother",
    " answer",  " found",  " study",    " still",  " learn",   " should",  " world",     " file",    " function",
    " return",  " value",  " string",   " error",  " test",    " build",   " code",      " cache",   " token",
    " model",   " server", " request",  " path",   " list",    " key",     " type",      " size",    " state",
    " true",    " false",  " null",     " run",    " call",    " user",    " assistant", " system",  " tool",
    " message", " result", " memory",   " table",  " index",   " fire",    " hearth",    " stone",   " warm",
    " light",   " night",  " winter",   " ash",    " wood",    " smoke",   " ember",     " keep",    " store",
    " hold",    " carry",  " open",     " close",  "ing",      "ed",       "er",         "ly",       "tion",
    "ment",     "ness",    "able",      "est",     "ful",      "the",      "and",        "user",     "assistant",
    "system",   "The",     "This",      "It",      "I",        "You",      "We",         "In",       "A",
    "What",     "How",     "Yes",       "No",      "Hello",    "Thanks",   "Sure",       "th",       "he",
    "in",       "er",      "an",        "re",      "on",       "at",       "en",         "nd",       "st",
    "es",       "or",      "te",        "of",      "it",       "is",       "ar",         ". ",       ", ",
    ".\n",      ":\n",     "\n\n",      "! ",      "? ",       "'s",       "'t",         "--",       "...",
    "{\"",      "\":",     "\": ",      "\": \"",  "\",",      "\", \"",   "\"}",        "\"]",      "[\"",
    "},",       "]}",      "}}",        "[]",      "{}",       "()",       "();",        "//",       "/*",
    "*/",       "=>",      "->",        "==",      "!=",       "<=",       ">=",         "&&",       "||",
    "::",       "```",
};
/* Matched in text only. */
static const char *const pieces[] = {
    "  ",    "    ",  "        ", "\n\n\n",   "\t\t",         "\r\n",         "\n  ",         "\n    ",
    "====",  "----",  "0x",       "10",       "20",           "100",          "200",          "http",
    "https", "://",   "www",      ".com",     ".c",           ".h",           ".py",          ".json",
    ".md",   "def ",  "return",   "import ",  "const",        "static",       "struct ",      "void ",
    "int ",  "char ", "for ",     "while ",   "if ",          "else",         "self",         "None",
    "True",  "False", "\xC3\xA9", "\xC3\xBC", "\xE2\x80\x99", "\xE2\x80\x9C", "\xE2\x80\x9D", "\xE2\x80\xA6",
};
/* One byte short of a character: an emoji, a CJK character. Any continuation byte makes one. */
static const char *const leads[] = {
    "\xF0\x9F\x98",
    "\xE4\xB8",
};
static const char *const specials[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
    FIRST_WORD = SIM_BYTE_TOKENS,
    FIRST_PIECE = FIRST_WORD + COUNT(words),
    FIRST_LEAD = FIRST_PIECE + COUNT(pieces),
    FIRST_SPECIAL = FIRST_LEAD + COUNT(leads),
    VOCAB = FIRST_SPECIAL + COUNT(specials),
    LEAD_BYTE = 0xC3, /* also a lead: with any continuation it is one of U+00C0 … U+00FF */
};

uint32_t hearth_sim_text_vocab(void) {
    return VOCAB;
}

const char *hearth_sim_text_bytes(hearth_token token, size_t *len) {
    static const char bytes[SIM_BYTE_TOKENS] = {
#define B4(b) (char)(b), (char)((b) + 1), (char)((b) + 2), (char)((b) + 3)
#define B16(b) B4(b), B4((b) + 4), B4((b) + 8), B4((b) + 12)
#define B64(b) B16(b), B16((b) + 16), B16((b) + 32), B16((b) + 48)
        B64(0), B64(64), B64(128), B64(192)
#undef B4
#undef B16
#undef B64
    };
    HEARTH_ASSERT(token >= 0 && token < VOCAB);
    if (token < FIRST_WORD) {
        *len = 1; /* strlen() would not do for NUL */
        return &bytes[token];
    }
    const char *text = token < FIRST_PIECE     ? words[token - FIRST_WORD]
                       : token < FIRST_LEAD    ? pieces[token - FIRST_PIECE]
                       : token < FIRST_SPECIAL ? leads[token - FIRST_LEAD]
                                               : specials[token - FIRST_SPECIAL];
    *len = strlen(text);
    return text;
}

bool hearth_sim_text_is_special(hearth_token token) {
    return token >= FIRST_SPECIAL;
}

hearth_token hearth_sim_text_end(void) {
    return FIRST_SPECIAL + 1;
}

hearth_token hearth_sim_text_stop(void) {
    return FIRST_SPECIAL + 2;
}

void hearth_sim_text_words(hearth_token *first, hearth_token *last) {
    *first = FIRST_WORD;
    *last = FIRST_PIECE;
}

hearth_token hearth_sim_text_lead(size_t k) {
    HEARTH_ASSERT(k < SIM_LEADS);
    return k == 0 ? LEAD_BYTE : FIRST_LEAD + (hearth_token)k - 1;
}
_Static_assert(SIM_LEADS == 1 + COUNT(leads), "every lead can be drawn");

bool hearth_sim_text_is_lead(hearth_token token) {
    return token == LEAD_BYTE || (token >= FIRST_LEAD && token < FIRST_SPECIAL);
}

bool hearth_sim_text_init(struct hearth_trie *trie) {
    for (hearth_token token = 0; token < FIRST_SPECIAL; token++) {
        size_t len;
        const char *text = hearth_sim_text_bytes(token, &len);
        int32_t *place = hearth_trie_place(trie, text, len);
        if (place == NULL) {
            return false;
        }
        /* A text that stands twice in the tables keeps its first token; the second is only ever drawn, which is one
         * more way for a reply to come back as other tokens. */
        *place = *place < 0 ? token : *place;
    }
    return true;
}

/* The special that the text begins with, or -1. */
static hearth_token special_match(const char *bytes, size_t len, size_t *matched) {
    if (len < 2 || bytes[0] != '<' || bytes[1] != '|') {
        return -1;
    }
    for (int i = 0; i < (int)COUNT(specials); i++) {
        *matched = strlen(specials[i]);
        if (*matched <= len && memcmp(bytes, specials[i], *matched) == 0) {
            return FIRST_SPECIAL + i;
        }
    }
    return -1;
}

int hearth_sim_text_tokenize(const struct hearth_trie *trie, const char *bytes, size_t len, bool parse_special,
                             struct hearth_tokens *out) {
    size_t n_before = out->n;
    for (size_t i = 0, matched; i < len; i += matched) {
        hearth_token token = parse_special ? special_match(bytes + i, len - i, &matched) : -1;
        if (token < 0) {
            bool open;
            matched = hearth_trie_match(trie, bytes + i, len - i, &token, &open);
        }
        const int err = hearth_tokens_push(out, token) ? hearth_cancel_poll() : HEARTH_ERR_NOMEM;
        if (err != HEARTH_OK) {
            out->n = n_before;
            return err;
        }
    }
    return HEARTH_OK;
}
