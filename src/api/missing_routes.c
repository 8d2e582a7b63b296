/* Routes of llama-server that hearth lacks, and paths of clients that have the wrong base URL. A client that asks for
 * one is told in one line what to do instead. docs/api.md has the first table, too. */
#include "api/internal.h"

#include <stddef.h>
#include <string.h>

/* `method` NULL: any. */
static const struct {
    const char *method, *path, *instead;
} routes[] = {
    {NULL, "/embedding", "embeddings are not served: run llama-server --embeddings beside it"},
    {NULL, "/embeddings", "embeddings are not served: run llama-server --embeddings beside it"},
    {NULL, "/v1/embeddings", "embeddings are not served: run llama-server --embeddings beside it"},
    {NULL, "/rerank", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/reranking", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/v1/rerank", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/v1/reranking", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/audio/transcriptions", "this server reads and writes text only"},
    {NULL, "/v1/audio/transcriptions", "this server reads and writes text only"},
    {"POST", "/props", "what /props says is set by the options of hearth serve"},
    {"POST", "/models", "the model is the one that hearth serve was started with: start it with another one"},
    {"DELETE", "/models", "the model is the one that hearth serve was started with: start it with another one"},
    {NULL, "/models/load", "the model is the one that hearth serve was started with: start it with another one"},
    {NULL, "/models/unload", "the model is the one that hearth serve was started with: stop the server"},
    {NULL, "/models/sse", "the model is there as soon as the server is: ask /health"},
    {NULL, "/v1/chat/completions/control", "limit the reasoning with thinking_budget_tokens in the request itself"},
    {NULL, "/v1/stream", "a stream ends with its connection: use /v1/responses with background, and poll it"},
    {NULL, "/v1/streams/lookup", "a stream ends with its connection: use /v1/responses with background, and poll it"},
    {NULL, "/cors-proxy", "the page at / asks this server only"},
    {NULL, "/tools", "tools are run by the client: send them in the request"},
};

#define OPENAI "the base URL of an OpenAI client ends in /v1: http://127.0.0.1:8080/v1"
#define OLLAMA "this is no Ollama: choose an OpenAI-compatible provider, whose base URL is http://127.0.0.1:8080/v1"

/* Ends of paths that belong to a route under another base URL. */
static const struct {
    const char *end, *hint;
} hints[] = {
    {"/chat/completions", OPENAI},
    {"/completions", OPENAI},
    {"/responses", OPENAI},
    {"/messages", "the base URL of an Anthropic client is without /v1: http://127.0.0.1:8080"},
    {"/api/chat", OLLAMA},
    {"/api/generate", OLLAMA},
};

const char *hearth_api_route_hint(const char *path) {
    const size_t len = strlen(path);
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        const size_t end = strlen(hints[i].end);
        if (len >= end && strcmp(path + len - end, hints[i].end) == 0) {
            return hints[i].hint;
        }
    }
    return NULL;
}

const char *hearth_api_missing_route(const char *method, const char *path) {
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(routes[i].path, path) == 0 && (routes[i].method == NULL || strcmp(routes[i].method, method) == 0)) {
            return routes[i].instead;
        }
    }
    return NULL;
}
