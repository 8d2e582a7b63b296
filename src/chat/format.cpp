/* What a reply to a request looks like: grammar, triggers, tags, parser.
 *
 * Design. `common` derives all of it together with a prompt, by rendering several times over; on a long history that is
 * slow, and none of it depends on what the messages say. So it is derived from a few words that stand in for them and
 * end as the request does, and kept under a digest of everything else in the request. A continued message is the
 * exception: the parser begins with its text.
 *
 * Schemas are tried one by one first, so that a refusal names the tool; grammars are parsed, so that a bad one is the
 * request's fault and not a failure of the engine later.
 *
 * Invariants. A format is not written after it has been made. `formats` holds one reference each, latest first. */
#include "chat/chat_internal.hpp"

#include <new>

namespace {

constexpr size_t k_formats = 32;

/* ------------------------------------------------------------------------------------------------- the request */

static common_chat_tool_choice choice_of(const struct hearth_chat_request &request) {
    return request.tool_choice == HEARTH_TOOLS_NONE   ? COMMON_CHAT_TOOL_CHOICE_NONE
           : request.tool_choice == HEARTH_TOOLS_AUTO ? COMMON_CHAT_TOOL_CHOICE_AUTO
                                                      : COMMON_CHAT_TOOL_CHOICE_REQUIRED;
}

static common_reasoning_format reasoning_of(const struct hearth_chat_request &request) {
    switch (request.reasoning_format) {
    case HEARTH_REASONING_NONE: return COMMON_REASONING_FORMAT_NONE;
    case HEARTH_REASONING_DEEPSEEK_LEGACY: return COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY;
    case HEARTH_REASONING_AUTO:
    case HEARTH_REASONING_DEEPSEEK: break;
    }
    return COMMON_REASONING_FORMAT_DEEPSEEK;
}

static bool has_tools(const struct hearth_chat_request &request) {
    return json_array_size(request.tools) > 0;
}

/* Whether a reply can hold calls. */
static bool can_call(const struct hearth_chat_request &request) {
    return has_tools(request) && request.tool_choice != HEARTH_TOOLS_NONE;
}

/* A call that is forced leaves no content for the schema to say something about. */
static bool keeps_schema(const struct hearth_chat_request &request) {
    return request.json_schema != nullptr && !(has_tools(request) && request.tool_choice == HEARTH_TOOLS_REQUIRED);
}

/* Whether a reply under a schema can be calls as well: where it can be told from its first words which of them it is,
 * and the calls' parser takes what the schema says for content. Parsers that are code in `common` know either; there
 * the schema wins. */
static bool calls_or_schema(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    if (!keeps_schema(request) || !can_call(request) || request.continues || chat.specialised) {
        return false;
    }
    const autoparser::tool_format_analysis &format = chat.analysis.tools.format;
    const bool marked = !(format.section_start.empty() && format.per_call_start.empty());
    const bool wraps = format.mode == autoparser::tool_format::JSON_NATIVE && chat.analysis.content.is_always_wrapped();
    return !chat.abilities.tools || (format.mode != autoparser::tool_format::NONE && marked && !wraps);
}

/* The rule that is the calls, in a grammar where there must be some: as `common` and generic.cpp name them. */
static const char *calls_rule(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    const autoparser::tool_format_analysis &format = chat.analysis.tools.format;
    const bool sections = !format.section_start.empty(), each = !format.per_call_start.empty();
    const bool several = !chat.abilities.tools                                 ? request.parallel_calls
                         : format.mode == autoparser::tool_format::JSON_NATIVE ? each && !sections
                                                                               : each && sections;
    return several ? "tool-calls" : "tool-call";
}

static const struct hearth_message *last_message(const struct hearth_chat_request &request) {
    return request.message_count > 0 ? request.messages[request.message_count - 1] : nullptr;
}

static bool ends_with_result(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    const struct hearth_message *last = last_message(request);
    return chat.abilities.tools && last != nullptr && last->role == HEARTH_ROLE_TOOL;
}

/* What stands in for the history. */
static std::vector<common_chat_msg> stand_in(const struct hearth_chat_request &request, bool ends_in_result) {
    std::vector<common_chat_msg> messages(1);
    messages[0].role = "user";
    messages[0].content = "Hello";
    if (ends_in_result) {
        const std::vector<common_chat_tool> tools = common_tools(request.tools);
        common_chat_msg call, result;
        call.role = "assistant";
        call.tool_calls.push_back({tools.empty() ? "tool" : tools[0].name, "{}", "call00001"});
        result.role = "tool";
        result.content = "Done";
        result.tool_name = call.tool_calls[0].name;
        result.tool_call_id = "call00001";
        messages.push_back(call);
        messages.push_back(result);
    }
    if (request.continues) {
        const struct hearth_message *last = last_message(request);
        common_chat_msg message;
        message.role = "assistant";
        message.content = std::string(last->content, last->content_len);
        message.reasoning_content = last->reasoning != nullptr ? last->reasoning : "";
        messages.push_back(message);
    }
    return messages;
}

/* Everything but the messages. */
static common_chat_templates_inputs inputs_of(const struct hearth_chat &chat,
                                              const struct hearth_chat_request &request) {
    common_chat_templates_inputs inputs;
    inputs.tools = common_tools(request.tools);
    inputs.tool_choice = choice_of(request);
    inputs.parallel_tool_calls = request.parallel_calls && chat.abilities.parallel_calls;
    inputs.reasoning_format = reasoning_of(request);
    inputs.enable_thinking = thinking_of(request);
    inputs.add_generation_prompt = !request.continues && !request.no_generation_prompt;
    if (request.continues) {
        inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
    }
    if (request.grammar != nullptr) {
        inputs.grammar = request.grammar;
    }
    if (keeps_schema(request)) {
        inputs.json_schema = json_text(or_any_object(request.json_schema).get());
    }
    const char *name;
    json_t *argument;
    json_object_foreach(const_cast<json_t *>(request.kwargs), name, argument) {
        inputs.chat_template_kwargs[name] = json_text(argument);
    }
    return inputs;
}

static struct hearth_digest key_of(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    const bool schema = request.json_schema != nullptr, grammar = request.grammar != nullptr;
    const bool tools = has_tools(request), kwargs = request.kwargs != nullptr;
    std::string text;
    for (const int number :
         {static_cast<int>(request.tool_choice), static_cast<int>(request.reasoning_format),
          int{request.parallel_calls}, int{thinking_of(request)}, int{request.no_generation_prompt},
          int{ends_with_result(chat, request)}, int{schema}, int{grammar}, int{tools}, int{kwargs}}) {
        text += static_cast<char>('0' + number);
    }
    struct hearth_digest key = hearth_digest_bytes(text.data(), text.size());
    if (tools || schema || grammar || kwargs) { /* the rest says nothing of a client */
        key = hearth_digest_chain(key, &request.salt, sizeof request.salt);
    }
    for (const json_t *value : {request.tools, request.json_schema, request.kwargs}) {
        text = value != nullptr ? json_text(value) : "";
        key = hearth_digest_chain(key, text.data(), text.size());
    }
    text = grammar ? request.grammar : "";
    return hearth_digest_chain(key, text.data(), text.size());
}

/* ------------------------------------------------------------------------------------------------- checks */

static void check_request(const struct hearth_chat_request &request) {
    if (request.grammar != nullptr && request.json_schema != nullptr) {
        throw invalid_request("a grammar and a JSON schema cannot be kept at the same time");
    }
    if (request.grammar != nullptr && can_call(request)) {
        throw invalid_request("a grammar cannot be kept in a request with tools");
    }
    if (request.kwargs != nullptr && !json_is_object(request.kwargs)) {
        throw invalid_request("template arguments must be an object");
    }
    const struct hearth_message *last = last_message(request);
    if (request.continues && (last == nullptr || last->role != HEARTH_ROLE_ASSISTANT)) {
        throw invalid_request("only a message of the assistant can be continued");
    }
    if (request.continues && last->call_count > 0) {
        throw invalid_request("a message with tool calls cannot be continued");
    }
    if (request.json_schema != nullptr && !json_is_object(request.json_schema)) {
        throw invalid_request("the JSON schema must be an object");
    }
}

/* ------------------------------------------------------------------------------------------------- info */

static const char *keep(struct hearth_chat_format &format, std::string text) {
    HEARTH_ASSERT(format.texts.size() < format.texts.capacity());
    return format.texts.emplace_back(std::move(text)).c_str();
}

static std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> out;
    out.reserve(texts.size());
    for (const std::string &text : texts) {
        out.push_back(text.c_str());
    }
    return out;
}

/* As common_sampler_init() takes them. */
static void fill_triggers(struct hearth_chat_format &format) {
    for (const common_grammar_trigger &trigger : format.params.grammar_triggers) {
        std::string text = trigger.value;
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL) {
            text = text.empty() ? "^$" : (text.front() != '^' ? "^" : "") + text + (text.back() != '$' ? "$" : "");
        }
        const bool token =
            trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD || trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
        format.triggers.push_back({token, keep(format, std::move(text))});
    }
}

static void begin_calls(struct hearth_chat_format &format, const std::string &begin) {
    format.info.call_begin = begin.empty() ? nullptr : keep(format, begin);
}

static void fill_info(struct hearth_chat_format &format, bool own_grammar) {
    struct hearth_chat_format_info &info = format.info;
    const common_chat_params &params = format.params;
    format.texts.reserve(params.grammar_triggers.size() + 1);
    fill_triggers(format);
    format.preserved = pointers(params.preserved_tokens);
    format.stops = pointers(params.additional_stops);
    format.thinking_ends = pointers(params.thinking_end_tags);
    info.grammar = params.grammar.empty() ? nullptr : params.grammar.c_str();
    info.grammar_lazy = params.grammar_lazy;
    info.grammar_prefill = info.grammar != nullptr && !params.grammar_lazy && !own_grammar;
    info.triggers = format.triggers.data();
    info.trigger_count = format.triggers.size();
    info.preserved = format.preserved.data();
    info.preserved_count = format.preserved.size();
    info.stops = format.stops.data();
    info.stop_count = format.stops.size();
    info.generation_prompt = params.generation_prompt.c_str();
    info.thinking_start = params.thinking_start_tag.c_str();
    info.thinking_ends = format.thinking_ends.data();
    info.thinking_end_count = format.thinking_ends.size();
}

/* ------------------------------------------------------------------------------------------------- making one */

/* What `common` says about a request. */
static common_chat_params apply(const struct hearth_chat &chat, const struct hearth_chat_request &request,
                                common_chat_templates_inputs inputs, bool ends_in_result) {
    inputs.messages = stand_in(request, ends_in_result);
    if (chat.jinja == nullptr) {
        common_chat_params params;
        params.generation_prompt = request.continues ? inputs.messages.back().content : "";
        return params;
    }
    return common_chat_templates_apply(chat.templates.get(), inputs);
}

static common_chat_params derive(const struct hearth_chat &chat, const struct hearth_chat_request &request,
                                 bool ends_in_result);

/* Calls, or what the schema says, which to the calls' parser is content. */
static common_chat_params derive_either(const struct hearth_chat &chat, const struct hearth_chat_request &request,
                                        bool ends_in_result) {
    struct hearth_chat_request part = request;
    part.tool_choice = HEARTH_TOOLS_NONE;
    std::string schema = derive(chat, part, ends_in_result).grammar;
    if (schema.empty()) {
        schema = schema_grammar(request.json_schema);
    }
    part.json_schema = nullptr;
    part.tool_choice = HEARTH_TOOLS_REQUIRED;
    const std::string calls = derive(chat, part, ends_in_result).grammar;
    part.tool_choice = HEARTH_TOOLS_AUTO;
    common_chat_params params = derive(chat, part, ends_in_result);
    params.grammar = with_calls(schema, calls, calls_rule(chat, request));
    params.grammar_lazy = false;
    params.grammar_triggers.clear();
    return params;
}

static common_chat_params derive(const struct hearth_chat &chat, const struct hearth_chat_request &request,
                                 bool ends_in_result) {
    if (calls_or_schema(chat, request)) {
        return derive_either(chat, request, ends_in_result);
    }
    common_chat_templates_inputs inputs = inputs_of(chat, request);
    if (chat.abilities.tools || !has_tools(request)) {
        return apply(chat, request, std::move(inputs), ends_in_result);
    }
    common_chat_templates_inputs without = inputs;
    without.tools.clear();
    common_chat_params params = apply(chat, request, std::move(without), ends_in_result);
    if (!can_call(request) || keeps_schema(request)) {
        return params;
    }
    std::string turn_begin = params.generation_prompt;
    if (request.continues) {
        struct hearth_chat_request fresh = request;
        fresh.continues = false;
        turn_begin = apply(chat, fresh, inputs_of(chat, fresh), ends_in_result).generation_prompt;
    }
    generic_parser(params, chat.analysis.reasoning, inputs, turn_begin);
    return params;
}

/* ------------------------------------------------------------------------------------------------- schemas */

/* A request with other schemas than the client's. */
struct with_schemas {
    json_ptr schema, tools;
    struct hearth_chat_request request;

    with_schemas(const struct hearth_chat_request &original, json_ptr other_schema, json_ptr other_tools)
        : schema(std::move(other_schema)), tools(std::move(other_tools)), request(original) {
        request.json_schema = schema.get();
        request.tools = tools.get();
    }
};

/* The schemas as the parser takes them. An ordinary tool whose parameters no grammar can be made for is not refused:
 * its arguments are some object. What must be kept to the letter (strict tools, formats) has been refused before. */
static with_schemas buildable_request(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    json_ptr schema = request.json_schema != nullptr ? buildable(request.json_schema, "JSON schema") : nullptr;
    json_ptr tools;
    if (has_tools(request)) {
        tools = changed_tools(request.tools, [](size_t, const json_t *parameters) {
            try {
                return json_object_size(parameters) > 0 ? buildable(parameters, "parameters") : nullptr;
            } catch (const invalid_request &) {
                return json_ptr(json_pack("{s:s}", "type", "object"));
            }
        });
    }
    return with_schemas(request, std::move(schema), printable_tools(chat, std::move(tools)));
}

/* The grammar is made of stronger schemas than the parser: the parser reads what types there are from the schemas as
 * they came, and the grammar holds to what the builder would leave out. */
static common_chat_params derive_strong(const struct hearth_chat &chat, const struct hearth_chat_request &original,
                                        const struct hearth_chat_request &request, bool ends_in_result) {
    common_chat_params params = derive(chat, request, ends_in_result);
    if (params.grammar.empty() || request.grammar != nullptr) {
        return params;
    }
    with_schemas strong_schemas(
        request, request.json_schema != nullptr ? strengthened(original.json_schema) : nullptr,
        has_tools(request) ? printable_tools(chat, strengthened_tools(original.tools, request.tools)) : nullptr);
    params.grammar = filled(derive(chat, strong_schemas.request, ends_in_result).grammar);
    return params;
}

static bool is_plain(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    if (can_call(request) || request.continues || keeps_schema(request)) {
        return false;
    }
    if (chat.jinja == nullptr) {
        return true;
    }
    return !chat.specialised && chat.analysis.analysis_complete &&
           (chat.analysis.reasoning.mode == autoparser::reasoning_mode::NONE ||
            request.reasoning_format == HEARTH_REASONING_NONE) &&
           chat.analysis.content.mode == autoparser::content_mode::PLAIN;
}

static void load_parser(struct hearth_chat_format &format, const struct hearth_chat_request &request) {
    common_chat_parser_params &parser = format.parser;
    parser = common_chat_parser_params(format.params);
    parser.reasoning_format = reasoning_of(request);
    parser.reasoning_in_content = parser.reasoning_format == COMMON_REASONING_FORMAT_DEEPSEEK_LEGACY;
    parser.parse_tool_calls = request.tool_choice != HEARTH_TOOLS_NONE;
    parser.is_continuation = request.continues;
    if (!format.params.parser.empty()) {
        parser.parser.load(format.params.parser);
        format.params.parser.clear();
    } else {
        parser.generation_prompt = request.continues ? format.params.generation_prompt : "";
    }
}

/* A grammar that no template has made: the client's own, or that of a schema where the template's parser has no place
 * for one. True: there is one. */
static bool add_own_grammar(common_chat_params &params, const struct hearth_chat_request &request) {
    if (request.grammar != nullptr) {
        params.grammar = request.grammar;
        params.grammar_lazy = false;
        params.grammar_triggers.clear();
        return true;
    }
    if (!keeps_schema(request) || !params.grammar.empty()) {
        return false;
    }
    params.grammar = filled(schema_grammar(strengthened(request.json_schema).get()));
    params.grammar_lazy = false;
    return true;
}

/* Whether the parser can read what the prompt ends with. */
static bool begins(const struct hearth_chat_format &format) {
    return !fault_of([&] { common_chat_parse("", true, format.parser); });
}

/* Some templates end otherwise behind a result than `common`'s parsers for them think, or want more of a tool round
 * than stands in for one. Then a user's words stand in. */
static void derive_into(struct hearth_chat_format &format, const struct hearth_chat &chat,
                        const struct hearth_chat_request &original, const struct hearth_chat_request &request) {
    const auto make = [&](bool ends_in_result) {
        format.params = derive_strong(chat, original, request, ends_in_result);
        load_parser(format, request);
    };
    if (!ends_with_result(chat, request) || fault_of([&] { make(true); }) || !begins(format)) {
        make(false);
    }
}

static format_ptr make_format(const struct hearth_chat &chat, const struct hearth_chat_request &request) {
    check_request(request);
    const with_schemas schemas = buildable_request(chat, request);
    format_ptr format(new struct hearth_chat_format);
    derive_into(*format, chat, request, schemas.request);
    format->params.prompt.clear();
    const bool own_grammar = add_own_grammar(format->params, request);
    check_llama_grammar(format->params.grammar,
                        request.grammar != nullptr ? "grammar" : "the grammar made for this request");
    if (format->params.grammar_lazy && format->params.grammar_triggers.empty()) {
        format->params.grammar.clear();
        format->params.grammar_lazy = false;
    }
    fill_info(*format, own_grammar);
    format->short_ids = (chat.abilities.form & HEARTH_CHAT_IDS_SHORT) != 0;
    format->info.generic_tools = !chat.abilities.tools && has_tools(request);
    format->info.plain = is_plain(chat, request);
    if (can_call(request) && (!keeps_schema(request) || calls_or_schema(chat, request))) {
        const autoparser::analyze_tools &tools = chat.analysis.tools;
        if (format->info.generic_tools) {
            begin_calls(*format, generic_call_begin);
        } else if (!chat.specialised && tools.format.mode != autoparser::tool_format::NONE) {
            begin_calls(*format,
                        tools.format.section_start.empty() ? tools.format.per_call_start : tools.format.section_start);
        }
    }
    return format;
}

/* The format for a key, moved to the front; null: none. */
static struct hearth_chat_format *cached(struct hearth_chat &chat, struct hearth_digest key) {
    const std::lock_guard<std::mutex> guard(chat.lock);
    for (auto each = chat.formats.begin(); each != chat.formats.end(); ++each) {
        if (hearth_digest_equal(each->key, key)) {
            chat.formats.splice(chat.formats.begin(), chat.formats, each);
            return ::hearth_chat_format_ref(each->format.get());
        }
    }
    return nullptr;
}

static void remember(struct hearth_chat &chat, struct hearth_digest key, struct hearth_chat_format *format) {
    std::list<cached_format> evicted; /* freed outside the lock */
    std::list<cached_format> added;
    added.push_back({key, format_ptr(::hearth_chat_format_ref(format))});
    const std::lock_guard<std::mutex> guard(chat.lock);
    chat.formats.splice(chat.formats.begin(), added);
    if (chat.formats.size() > k_formats) {
        evicted.splice(evicted.begin(), chat.formats, std::prev(chat.formats.end()));
    }
}

} // namespace

bool thinking_of(const struct hearth_chat_request &request) {
    const json_t *argument = json_object_get(request.kwargs, "enable_thinking");
    return json_is_boolean(argument) ? json_is_true(argument) : request.thinking;
}

std::string apply_prompt(const struct hearth_chat &chat, const turn_list &list,
                         const struct hearth_chat_request &request) {
    common_chat_templates_inputs inputs = inputs_of(chat, request);
    inputs.messages = common_messages(list);
    if (list.generic) {
        inputs.tools.clear();
    } else if (list.filled) {
        inputs.tools = common_tools(filled_tools(request.tools).get());
    }
    inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE; /* cheaper, and nothing that is printed depends on these */
    inputs.json_schema.clear();
    inputs.grammar.clear();
    return common_chat_templates_apply(chat.templates.get(), inputs).prompt;
}

extern "C" {

int hearth_chat_format_get(struct hearth_chat *chat, const struct hearth_chat_request *request,
                           struct hearth_chat_format **out, struct hearth_errmsg *msg) {
    *out = nullptr;
    return guarded(msg, [&] {
        if (request->continues) {
            *out = make_format(*chat, *request).release();
            return HEARTH_OK;
        }
        const struct hearth_digest key = key_of(*chat, *request);
        *out = cached(*chat, key);
        if (*out == nullptr) {
            format_ptr made = whole(make_format(*chat, *request));
            remember(*chat, key, made.get());
            *out = made.release();
        }
        return HEARTH_OK;
    });
}

int hearth_chat_format_get_texts(struct hearth_chat *chat, const struct hearth_chat_request *request,
                                 struct hearth_chat_format **out, struct hearth_errmsg *msg) {
    *out = nullptr;
    return guarded(msg, [&] {
        const json_ptr tools = text_tools(request->tools);
        struct hearth_chat_request other = *request;
        other.tools = tools.get();
        other.tool_choice = HEARTH_TOOLS_AUTO;
        other.parallel_calls = true;
        other.json_schema = nullptr;
        other.grammar = nullptr;
        return hearth_chat_format_get(chat, &other, out, msg);
    });
}

struct hearth_chat_format *hearth_chat_format_ref(struct hearth_chat_format *format) {
    HEARTH_ASSERT(format->refs.fetch_add(1, std::memory_order_relaxed) > 0);
    return format;
}

void hearth_chat_format_unref(struct hearth_chat_format *format) {
    if (format != nullptr && format->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        delete format;
    }
}

const struct hearth_chat_format_info *hearth_chat_format_info(const struct hearth_chat_format *format) {
    return &format->info;
}

} /* extern "C" */
