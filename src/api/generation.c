/* The fields of a request that set sampling and streaming, which chat and plain completions share.
 *
 * Three tables describe them: numeric fields with their ranges, fields whose type is checked and which are then
 * ignored, and fields that ask for features that hearth does not have. Anything else in the object is ignored.
 * Source: https://platform.openai.com/docs/api-reference/chat/create, llama-server's README. */
#include "api/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STOP_BYTES_MAX 4096

#define SAMPLING(member) offsetof(struct hearth_sampling, member)
#define MEMBER(member) offsetof(struct hearth_generation, member)

static const struct hearth_field of_sampling[] = {
    {"temperature", HEARTH_FIELD_FLOAT, 0, 2, false, SAMPLING(temperature)},
    {"top_p", HEARTH_FIELD_FLOAT, 0, 1, false, SAMPLING(top_p)},
    {"min_p", HEARTH_FIELD_FLOAT, 0, 1, false, SAMPLING(min_p)},
    {"typical_p", HEARTH_FIELD_FLOAT, 0, 1, true, SAMPLING(typical_p)},
    {"top_k", HEARTH_FIELD_INT, -1, INT32_MAX, false, SAMPLING(top_k)},
    {"presence_penalty", HEARTH_FIELD_FLOAT, -2, 2, false, SAMPLING(penalty_presence)},
    {"frequency_penalty", HEARTH_FIELD_FLOAT, -2, 2, false, SAMPLING(penalty_frequency)},
    {"repeat_penalty", HEARTH_FIELD_FLOAT, 0, 10, true, SAMPLING(penalty_repeat)},
    {"repeat_last_n", HEARTH_FIELD_INT, -1, INT32_MAX, false, SAMPLING(penalty_last_tokens)},
    {"top_n_sigma", HEARTH_FIELD_FLOAT, -1, 1000, false, SAMPLING(top_n_sigma)},
    {"xtc_probability", HEARTH_FIELD_FLOAT, 0, 1, false, SAMPLING(xtc_probability)},
    {"xtc_threshold", HEARTH_FIELD_FLOAT, 0, 1, false, SAMPLING(xtc_threshold)},
    {"dynatemp_range", HEARTH_FIELD_FLOAT, 0, 100, false, SAMPLING(dynatemp_range)},
    {"dynatemp_exponent", HEARTH_FIELD_FLOAT, 0, 100, false, SAMPLING(dynatemp_exponent)},
    {"dry_multiplier", HEARTH_FIELD_FLOAT, 0, 100, false, SAMPLING(dry_multiplier)},
    {"dry_base", HEARTH_FIELD_FLOAT, 0, 100, false, SAMPLING(dry_base)},
    {"dry_allowed_length", HEARTH_FIELD_INT, 0, INT32_MAX, false, SAMPLING(dry_allowed_length)},
    {"dry_penalty_last_n", HEARTH_FIELD_INT, -1, INT32_MAX, false, SAMPLING(dry_last_tokens)},
    {"ignore_eos", HEARTH_FIELD_BOOL, 0, 0, false, SAMPLING(ignore_eos)},
};

static const struct hearth_field fields[] = {
    {"n", HEARTH_FIELD_INT, 1, 16, false, MEMBER(n)},
    {"stream", HEARTH_FIELD_BOOL, 0, 0, false, MEMBER(stream)},
    {"cache_prompt", HEARTH_FIELD_BOOL, 0, 0, false, MEMBER(cache)},
};

static const struct {
    const char *name;
    enum hearth_field_kind kind;
} ignored[] = {
    {"model", HEARTH_FIELD_TEXT},
    {"user", HEARTH_FIELD_TEXT},
    {"prompt_cache_key", HEARTH_FIELD_TEXT},
    {"safety_identifier", HEARTH_FIELD_TEXT},
    {"service_tier", HEARTH_FIELD_TEXT},
    {"metadata", HEARTH_FIELD_OBJECT},
    {"store", HEARTH_FIELD_SWITCH},
    {"parallel_tool_calls", HEARTH_FIELD_SWITCH},
};

/* `nothing`: the values that ask for nothing, as they are printed. `plain`: only in plain completions. */
static const struct {
    const char *name, *nothing[2], *what;
    bool plain;
} unsupported[] = {
    {"tools", {"[]"}, "tool calling (use chat completions)", true},
    {"functions", {"[]"}, "tool calling (use chat completions)", true},
    {"suffix", {"\"\""}, "text insertion", true},
    {"modalities", {"[\"text\"]", "\"text\""}, "audio and image output", false},
    {"audio", {"{}"}, "audio output", false},
    {"web_search_options", {NULL}, "web search", false},
};

static bool is_printed(const json_t *value, const char *text) {
    char printed[16];
    return text != NULL && json_dumpb(value, printed, sizeof printed, JSON_COMPACT | JSON_ENCODE_ANY) == strlen(text) &&
           memcmp(printed, text, strlen(text)) == 0;
}

bool hearth_generation_check_supported(const json_t *body, bool plain, struct hearth_api_error *error) {
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        const json_t *value = hearth_api_json_get(body, unsupported[i].name);
        if ((plain || !unsupported[i].plain) && value != NULL && !is_printed(value, unsupported[i].nothing[0]) &&
            !is_printed(value, unsupported[i].nothing[1])) {
            return hearth_api_fail(error, 400, "unsupported_parameter", unsupported[i].name, "%s: %s is not supported",
                                   unsupported[i].name, unsupported[i].what);
        }
    }
    return true;
}

static bool check_ignored(const json_t *body, struct hearth_api_error *error) {
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        const json_t *value;
        if (!hearth_field_get(body, ignored[i].name, ignored[i].kind, &value, error)) {
            return false;
        }
    }
    return true;
}

json_t *hearth_api_sampling_json(const struct hearth_sampling *sampling, int32_t max_tokens) {
    json_t *json = hearth_fields_json(of_sampling, sizeof of_sampling / sizeof of_sampling[0], sampling);
    json_object_update_new(json, json_pack("{s:I, s:i, s:i}", "seed", (json_int_t)sampling->seed, "max_tokens",
                                           (int)max_tokens, "n_predict", (int)max_tokens));
    return json;
}

/* Reads the limit of the reply. Of two names the newer one wins. A limit beyond the context is no error: generation
 * ends with the context. */
static bool read_max_tokens(const json_t *body, struct hearth_generation *generation, struct hearth_api_error *error) {
    static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof names / sizeof names[0]; i++) {
        ok = hearth_field_tokens(hearth_api_json_get(body, names[i]), names[i], &generation->max_tokens, error);
    }
    return ok;
}

/* Reads the seed. Seeds of any size are folded to 32 bits; -1 or no seed asks for a random one. */
static bool read_seed(const json_t *body, struct hearth_generation *generation, struct hearth_api_error *error) {
    const json_t *value = hearth_api_json_get(body, "seed");
    int64_t seed;
    if (value == NULL) {
        return true;
    }
    if (!hearth_api_json_integer(value, &seed)) {
        return hearth_api_fail(error, 400, "invalid_type", "seed", "seed must be an integer");
    }
    uint32_t folded = (uint32_t)((uint64_t)seed & 0xFFFFFFFFu);
    if (seed == -1) {
        generation->sampling.seed = HEARTH_SEED_RANDOM;
    } else {
        generation->sampling.seed = folded == HEARTH_SEED_RANDOM ? folded - 1 : folded;
    }
    return true;
}

static bool add_stop(const json_t *value, struct hearth_generation *generation, struct hearth_api_error *error) {
    const char *text = json_string_value(value);
    if (text == NULL) {
        return hearth_api_fail(error, 400, "invalid_type", "stop", "stop must be a string or an array of strings");
    }
    if (*text == '\0' || strlen(text) != json_string_length(value)) {
        return hearth_api_fail(error, 400, "invalid_value", "stop", "a stop string is empty or holds a NUL character");
    }
    if (json_string_length(value) > STOP_BYTES_MAX) { /* every sampled token is compared with it */
        return hearth_api_fail(error, 400, "invalid_value", "stop", "a stop string may have %d bytes at most",
                               STOP_BYTES_MAX);
    }
    return (generation->stops[generation->stop_count++] = strdup(text)) != NULL;
}

static bool read_stops(const json_t *body, struct hearth_generation *generation, struct hearth_api_error *error) {
    const json_t *stop = hearth_api_json_get(body, "stop");
    if (stop == NULL) {
        return true;
    }
    size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
    if (count > HEARTH_STOPS_MAX) {
        return hearth_api_fail(error, 400, "invalid_value", "stop", "at most %u stop strings are allowed",
                               HEARTH_STOPS_MAX);
    }
    generation->stops = calloc(count + 1, sizeof *generation->stops);
    bool ok = generation->stops != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        ok = add_stop(json_is_array(stop) ? json_array_get(stop, i) : stop, generation, error);
    }
    return ok;
}

static bool add_bias(const struct hearth_api *api, int64_t token, const json_t *value,
                     struct hearth_generation *generation, struct hearth_api_error *error) {
    double bias = json_is_false(value) ? -INFINITY : json_number_value(value); /* llama-server: false bans a token */
    if (!json_is_number(value) && !json_is_false(value)) {
        return hearth_api_fail(error, 400, "invalid_type", "logit_bias", "logit_bias: a bias must be a number");
    }
    if (json_is_number(value) && (bias < -100 || bias > 100)) {
        return hearth_api_fail(error, 400, "invalid_value", "logit_bias",
                               "logit_bias: a bias must be from -100 to 100");
    }
    if (token < 0 || token >= (int64_t)api->engine->caps.vocab_tokens) {
        return hearth_api_fail(error, 400, "invalid_value", "logit_bias", "logit_bias: no token has the id %lld",
                               (long long)token);
    }
    generation->bias[generation->sampling.logit_biases++] =
        (struct hearth_logit_bias){.token = (hearth_token)token, .bias = (float)bias};
    return true;
}

/* {"id": bias, …}, or llama-server's [[id, bias], …]. */
static bool read_logit_bias(const struct hearth_api *api, const json_t *body, struct hearth_generation *generation,
                            struct hearth_api_error *error) {
    json_t *biases = hearth_api_json_get(body, "logit_bias");
    size_t count = json_is_array(biases) ? json_array_size(biases) : json_object_size(biases);
    generation->sampling.logit_bias = NULL;
    generation->sampling.logit_biases = 0;
    if (biases == NULL) {
        return true;
    }
    if (!json_is_array(biases) && !json_is_object(biases)) {
        return hearth_api_fail(error, 400, "invalid_type", "logit_bias", "logit_bias must be an object");
    }
    if (count > api->engine->caps.vocab_tokens) { /* every bias is applied at every sampled token */
        return hearth_api_fail(error, 400, "invalid_value", "logit_bias",
                               "logit_bias: there are more biases than tokens in the vocabulary");
    }
    generation->bias = calloc(count + 1, sizeof *generation->bias);
    if (generation->bias == NULL) {
        return false;
    }
    const char *key;
    json_t *value;
    json_object_foreach(biases, key, value) {
        char *end;
        long long token = strtoll(key, &end, 10);
        if (*key == '\0' || *end != '\0') {
            return hearth_api_fail(error, 400, "invalid_value", "logit_bias", "logit_bias: keys must be token ids");
        }
        if (!add_bias(api, token, value, generation, error)) {
            return false;
        }
    }
    size_t i;
    json_array_foreach(biases, i, value) {
        int64_t token;
        if (json_array_size(value) != 2 || !hearth_api_json_integer(json_array_get(value, 0), &token)) {
            return hearth_api_fail(error, 400, "invalid_type", "logit_bias", "logit_bias: pairs of token id and bias");
        }
        if (!add_bias(api, token, json_array_get(value, 1), generation, error)) {
            return false;
        }
    }
    generation->sampling.logit_bias = generation->bias;
    return true;
}

static bool read_stream_options(const json_t *body, struct hearth_generation *generation,
                                struct hearth_api_error *error) {
    const json_t *options;
    return hearth_field_get(body, "stream_options", HEARTH_FIELD_OBJECT, &options, error) &&
           hearth_field_bool(options, "include_usage", &generation->include_usage, error);
}

bool hearth_generation_read(const struct hearth_api *api, const json_t *body, bool plain,
                            struct hearth_generation *generation, struct hearth_api_error *error) {
    generation->sampling = api->params.sampling;
    generation->sampling.logprobs = -1;
    generation->max_tokens = api->params.max_tokens;
    generation->n = 1;
    generation->cache = true;
    if (!hearth_generation_check_supported(body, plain, error) || !check_ignored(body, error) ||
        !hearth_fields_read(body, of_sampling, sizeof of_sampling / sizeof of_sampling[0], &generation->sampling,
                            error) ||
        !hearth_fields_read(body, fields, sizeof fields / sizeof fields[0], generation, error) ||
        !hearth_lora_check(api, hearth_api_json_get(body, "lora"), error) ||
        !hearth_salt_read(body, &generation->salt, error) || !read_max_tokens(body, generation, error) ||
        !read_seed(body, generation, error) || !read_stops(body, generation, error) ||
        !read_logit_bias(api, body, generation, error) || !read_stream_options(body, generation, error)) {
        return false;
    }
    if (generation->sampling.top_k < 0) {
        generation->sampling.top_k = 0;
    }
    const int32_t context = (int32_t)api->engine->caps.ctx_tokens;
    if (generation->sampling.penalty_last_tokens < 0 || generation->sampling.penalty_last_tokens > context) {
        generation->sampling.penalty_last_tokens = context; /* -1: all of it, which is at most the context */
    }
    const char *model = json_string_value(hearth_api_json_get(body, "model"));
    return model == NULL || *model == '\0' || (generation->model = strdup(model)) != NULL;
}

bool hearth_generation_check_choices(const struct hearth_generation *generation, size_t prompt_count,
                                     struct hearth_api_error *error) {
    return prompt_count * (size_t)generation->n <= HEARTH_CHOICES_MAX ||
           hearth_api_fail(error, 400, "invalid_value", "prompt", "at most %u choices per request are allowed",
                           HEARTH_CHOICES_MAX);
}

void hearth_generation_finish(struct hearth_generation *generation) {
    for (size_t i = 0; i < generation->stop_count; i++) {
        free(generation->stops[i]);
    }
    free(generation->stops);
    free(generation->bias);
    free(generation->model);
    *generation = (struct hearth_generation){0};
}
