/* The chat shim: llama.cpp's `common` behind chat.h. The only C++ in hearth is in this room.
 *
 * Design. A template is parsed once, at creation, and tried with a few short requests to find out what it can do: what
 * it claims is not enough, so the words of a tool, a call and a result must really appear in what it prints. Rendering
 * runs the parsed program directly instead of common_chat_templates_apply(), which renders several times over to derive
 * a parser from the differences. Only where `common` has code for a template that prints other messages than it was
 * given (found by comparing the two) the prompt comes from there. A history that the template refuses, although the
 * probes said otherwise, is printed once more in the form that leaves hardly anything to refuse: the same history is
 * refused again in the next turn, and printed in the same form.
 *
 * Invariants. A template is not written after creation, so that any number of threads can render at once. */
#include "chat/chat_internal.hpp"

#include <llama.h>
#include <log.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

namespace {

constexpr const char *k_chatml = "{%- for message in messages -%}"
                                 "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
                                 "{%- endfor -%}"
                                 "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/* StepFun's template leaves white space in that sends its model into loops; llama.cpp trims for it, so hearth does. */
constexpr const char *k_stepfun_phrase = "You have access to the following functions in JSONSchema format";

/* ------------------------------------------------------------------------------------------------- rendering */

/* The formats that are code in llama.cpp: nothing says which bytes are input, so all of them may be. */
static rendered render_builtin(const struct hearth_chat &chat, const turn_list &list, bool generation_prompt) {
    std::vector<std::string> contents;
    std::vector<llama_chat_message> messages;
    contents.reserve(list.turns.size());
    size_t bytes = 256;
    for (const turn &each : list.turns) {
        contents.emplace_back(each.content);
        messages.push_back({hearth_role_text(each.role), contents.back().c_str()});
        bytes += contents.back().size() + 64;
    }
    rendered out;
    out.text.resize(bytes);
    for (int attempt = 0; attempt < 2; attempt++) {
        const int32_t len =
            llama_chat_apply_template(chat.builtin.c_str(), messages.data(), messages.size(), generation_prompt,
                                      out.text.data(), static_cast<int32_t>(out.text.size()));
        if (len < 0) {
            throw std::runtime_error("the built-in template '" + chat.builtin + "' refused the messages");
        }
        const bool fits = static_cast<size_t>(len) <= out.text.size();
        out.text.resize(static_cast<size_t>(len));
        if (fits) {
            break;
        }
    }
    out.input.push_back({0, out.text.size()});
    return out;
}

/* The tokenizer adds BOS itself. */
static void drop_bos(const struct hearth_chat &chat, rendered &prompt) {
    const size_t n = chat.bos.size();
    if (!chat.add_bos || n == 0 || prompt.text.compare(0, n, chat.bos) != 0) {
        return;
    }
    prompt.text.erase(0, n);
    for (text_range &r : prompt.input) {
        r.begin = r.begin > n ? r.begin - n : 0;
        r.end = r.end > n ? r.end - n : 0;
    }
}

static rendered render_turns(const struct hearth_chat &chat, const turn_list &list,
                             const struct hearth_chat_request &request, bool generation_prompt) {
    if (chat.jinja == nullptr) {
        return render_builtin(chat, list, generation_prompt);
    }
    if (!chat.rewrites) {
        return program_run(chat, list, request, generation_prompt);
    }
    rendered out;
    out.text = apply_prompt(chat, list, request);
    out.input.push_back({0, out.text.size()});
    return out;
}

/* A generation prompt that ends with the text that is continued, as the guarded request has it. */
static std::string with_continued(const std::string &ending, const struct hearth_chat_request &original,
                                  const struct hearth_chat_request &request) {
    const struct hearth_message &sent = *original.messages[original.message_count - 1];
    const struct hearth_message &guarded = *request.messages[request.message_count - 1];
    const std::string_view said = without_outer_space({sent.content, sent.content_len});
    const size_t at = sent.content == guarded.content ? std::string::npos : ending.rfind(said);
    std::string text = ending;
    if (at != std::string::npos) {
        text.replace(at, said.size(), without_outer_space({guarded.content, guarded.content_len}));
    }
    return text;
}

/* Where the generation prompt begins, and the text that is continued, where there is one. `original`: the request
 * without seams. */
static size_t finish_generation(const struct hearth_chat &chat, const turn_list &list,
                                const struct hearth_chat_request &original, const struct hearth_chat_request &request,
                                const struct hearth_chat_format &format, rendered &prompt) {
    const std::string &ending = format.params.generation_prompt;
    if (request.continues && !chat.rewrites) {
        const size_t begin = prompt.text.size();
        prompt.text += with_continued(ending, original, request);
        return begin;
    } else if (request.no_generation_prompt) {
        return HEARTH_CHAT_NO_MARK;
    } else if (chat.jinja == nullptr) {
        return std::min(render_builtin(chat, list, false).text.size(), prompt.text.size());
    }
    const size_t size = prompt.text.size();
    const bool ends = size >= ending.size() && prompt.text.compare(size - ending.size(), ending.size(), ending) == 0;
    return ends ? size - ending.size() : HEARTH_CHAT_NO_MARK;
}

/* Steps that leave hardly anything to refuse. */
constexpr unsigned k_last_resort = HEARTH_CHAT_SYSTEM_JOINED | HEARTH_CHAT_SYSTEM_MARKED | HEARTH_CHAT_USERS_JOINED |
                                   HEARTH_CHAT_REPLIES_JOINED | HEARTH_CHAT_USER_FIRST | HEARTH_CHAT_USER_FOLDED |
                                   HEARTH_CHAT_RESULTS_QUOTED;

static void render_in(const struct hearth_chat &chat, const struct hearth_chat_request &original,
                      const struct hearth_chat_request &request, const struct hearth_chat_format &format, unsigned form,
                      struct hearth_chat_prompt *out) {
    const bool without_last = request.continues && !chat.rewrites;
    const turn_list list = turns_of(chat, request, request.message_count - (without_last ? 1 : 0), form);
    const bool generation_prompt = !request.continues && !request.no_generation_prompt;
    check_cancel();
    rendered prompt = render_turns(chat, list, request, generation_prompt);
    check_cancel();
    drop_bos(chat, prompt);
    out->generation_start = finish_generation(chat, list, original, request, format, prompt);
    find_head_end(prompt, request, *out);
    out->system_end = find_system_end(prompt, list);
    out->last_input_start = find_last_input(prompt, list);
    if (!hearth_buf_append(&out->text, prompt.text.c_str(), prompt.text.size() + 1)) {
        throw std::bad_alloc();
    }
    out->text.len--; /* the NUL stays behind the text */
}

/* ------------------------------------------------------------------------------------------------- trying it */

/* A history, and whether it comes with tools. */
struct excerpt {
    const char *letters;
    bool tools;
};

static struct hearth_chat_request probe_request(const json_t *tools) {
    struct hearth_chat_request request = {};
    request.tools = tools;
    request.thinking = true;
    return request;
}

/* Empty: the template refuses. */
static std::string try_rendering(const struct hearth_chat &chat, const turn_list &list, const json_t *tools) {
    std::string text;
    (void)fault_of([&] { text = render_turns(chat, list, probe_request(tools), true).text; });
    return text;
}

/* Why the template prints nothing, whatever it is asked; empty: it prints something. */
static std::string find_failure(const struct hearth_chat &chat, const json_t *tools) {
    static const excerpt parts[] = {{"u", false},   {"su", false},    {"u", true},
                                    {"sucr", true}, {"suD2ra", true}, {"ucra", true}};
    std::string failure;
    for (const excerpt &part : parts) {
        const history tried(part.letters, true);
        const auto fault = fault_of(
            [&] { (void)render_turns(chat, tried.turns(), probe_request(part.tools ? tools : nullptr), true); });
        if (!fault) {
            return {};
        }
        failure = failure.empty() ? template_failure(*fault) : failure;
    }
    return failure;
}

static bool contains(const std::string &text, const char *what) {
    return text.find(what) != std::string::npos;
}

/* Whether tools, calls and results all get into the prompt, and `common` has found out how calls look. */
static bool prints_tools(const struct hearth_chat &chat, const json_t *tools) {
    const jinja::caps &caps = chat.jinja->caps;
    const bool parsed = chat.specialised || (chat.analysis.analysis_complete &&
                                             chat.analysis.tools.format.mode != autoparser::tool_format::NONE);
    if (!caps.supports_tools || !caps.supports_tool_calls || !parsed) {
        return false;
    }
    const history user("u", true), called("ucr", true);
    const std::string offered = try_rendering(chat, user.turns(), tools);
    const std::string round = try_rendering(chat, called.turns(), tools);
    return contains(offered, "hearth_tool") && contains(offered, "hearth_description") &&
           contains(round, called.said(1)) && contains(round, called.said(2));
}

/* Whether something that was said is in one prompt and not in another; not the second of two results. Words beside a
 * call may go: some models are trained so. */
static bool loses_words(const history &tried, const std::string &kept, const std::string &lost) {
    for (size_t i = 0; i < tried.count; i++) {
        if (tried.messages[i].tool_call_id != tried.calls[1].id && contains(kept, tried.said(i)) &&
            !contains(lost, tried.said(i))) {
            return true;
        }
    }
    return false;
}

/* Whether what `common` prints for a template is something else than the template prints. Not to be followed where it
 * takes the template for another one and drops messages. */
static bool finds_rewriting(struct hearth_chat &chat, const json_t *tools) {
    static const excerpt parts[] = {{"u", false},    {"su", true},    {"sucr", true},   {"suwr", true},
                                    {"suD2r", true}, {"sud2r", true}, {"suD2ra", true}, {"ucra", true}};
    bool differs = false;
    for (const excerpt &part : parts) {
        const history tried(part.letters, true);
        chat.rewrites = true;
        const std::string theirs = try_rendering(chat, tried.turns(), part.tools ? tools : nullptr);
        chat.rewrites = false;
        const std::string ours = try_rendering(chat, tried.turns(), part.tools ? tools : nullptr);
        if (loses_words(tried, ours, theirs)) {
            return false;
        }
        differs = differs || theirs != ours;
    }
    return differs;
}

static bool finds_specialised(const struct hearth_chat &chat) {
    autoparser::generation_params params;
    params.messages = common_json::array({common_json_value{{"role", "user"}, {"content", "Hello"}}});
    params.extra_context = common_json::object();
    params.add_generation_prompt = true;
    bool found = true; /* where it is `common`'s code for it that fails */
    (void)fault_of(
        [&] { found = common_chat_try_specialized_template(*chat.jinja, chat.jinja->source(), params).has_value(); });
    return found;
}

static bool finds_thinking(const struct hearth_chat &chat) {
    if (!chat.specialised) {
        return chat.analysis.analysis_complete && chat.analysis.reasoning.mode != autoparser::reasoning_mode::NONE;
    }
    bool found = false;
    (void)fault_of([&] { found = common_chat_templates_support_enable_thinking(chat.templates.get()); });
    return found;
}

/* Finds out how replies look. A reply ends before the end token, which is sampled and no text. `common` takes it for
 * the end of a call where the template prints it there (Mistral Small 3.2), and would find none: it gets a template
 * that prints none. What `common` itself prints, where that is used, has it. */
static void analyse(struct hearth_chat &chat) {
    if (fault_of([&] {
            if (!chat.rewrites) {
                chat.templates = common_chat_templates_init(nullptr, chat.source, chat.bos, "");
            }
            chat.analysed = std::make_unique<common_chat_template>(chat.jinja->source(), chat.bos, "");
            chat.analysis.analyze_template(*chat.analysed);
        })) {
        chat.analysis = {};
    }
}

static void find_abilities(struct hearth_chat &chat) {
    struct hearth_chat_abilities &abilities = chat.abilities;
    abilities.parallel_calls = true; /* those of generic.cpp */
    if (chat.jinja != nullptr) {
        const json_ptr tools = history_tools();
        chat.specialised = finds_specialised(chat);
        chat.rewrites = chat.specialised && finds_rewriting(chat, tools.get());
        analyse(chat);
        abilities.tools = prints_tools(chat, tools.get());
        abilities.parallel_calls = !abilities.tools || chat.jinja->caps.supports_parallel_tool_calls;
        abilities.thinking = finds_thinking(chat);
        chat.failure = find_failure(chat, tools.get());
        abilities.failure = chat.failure.empty() ? nullptr : chat.failure.c_str();
    }
    const render_fn render = [&chat](const struct hearth_chat_request &request, unsigned form) {
        return try_rendering(chat, turns_of(chat, request, request.message_count, form), request.tools);
    };
    bool prints_schemas = true;
    abilities.form = find_form(render, &prints_schemas);
    if (abilities.tools && !prints_schemas) { /* then they are described without it */
        abilities.tools = false;
        abilities.parallel_calls = true;
        abilities.form = find_form(render, &prints_schemas);
    }
}

/* ------------------------------------------------------------------------------------------------- loading */

static std::vector<std::string> builtin_names() {
    const int32_t n = llama_chat_builtin_templates(nullptr, 0);
    std::vector<const char *> names(static_cast<size_t>(std::max(n, 0)));
    llama_chat_builtin_templates(names.data(), names.size());
    return std::vector<std::string>(names.begin(), names.end());
}

static void load_template(struct hearth_chat &chat, const struct hearth_chat_params &params) {
    const std::string text = params.template_text != nullptr ? params.template_text : "";
    const std::string eos = params.eos_text != nullptr ? params.eos_text : "";
    chat.bos = params.bos_text != nullptr ? params.bos_text : "";
    chat.add_bos = params.add_bos;
    chat.source = text;
    if (text.empty() || text == "chatml") {
        chat.source = k_chatml;
    } else if (text.find('{') == std::string::npos) {
        const std::vector<std::string> names = builtin_names();
        if (std::find(names.begin(), names.end(), text) == names.end()) {
            throw std::invalid_argument("'" + text + "' is neither Jinja text nor the name of a built-in template");
        }
        chat.builtin = text;
        return;
    }
    chat.native_developer = chat.source.find("<|channel|>") != std::string::npos;
    chat.preambles = chat.source.find("<|channel|>analysis<|message|>") != std::string::npos;
    chat.trim_contents = chat.source.find(k_stepfun_phrase) != std::string::npos;
    const auto fault =
        fault_of([&] { chat.templates = common_chat_templates_init(nullptr, chat.source, chat.bos, eos); });
    if (fault) { /* it has lost the place */
        const std::string placed = template_fault(chat.source);
        throw std::runtime_error(placed.empty() ? *fault : placed);
    }
    const std::string repaired = common_chat_templates_source(chat.templates.get());
    chat.jinja = std::make_unique<common_chat_template>(repaired, chat.bos, eos);
    program_optimize(chat.jinja->prog);
}

} // namespace

/* ------------------------------------------------------------------------------------------------- memory */

/* What operator new does for want of memory. Every refusal is noted, whoever catches the exception. But nlohmann::json
 * allocates in its destructor, where an exception ends the process: so a few blocks of the reserve are given first, all
 * of them while an exception is on its way, and what was made with them is thrown away in the end. */
static void out_of_memory() {
    static thread_local int given;
    constexpr int k_most = 4;
    given = hearth_memory_refused() ? given + 1 : 1;
    hearth_memory_note();
    if ((given > k_most && std::uncaught_exceptions() == 0) || !hearth_memory_release()) {
        throw std::bad_alloc();
    }
}

/* ------------------------------------------------------------------------------------------------- chat.h */

extern "C" {

int hearth_chat_create(const struct hearth_chat_params *params, struct hearth_chat **out, struct hearth_errmsg *msg) {
    *out = nullptr;
    common_log_set_verbosity_thold(-1); /* `common` would print; what matters comes back as an error */
    std::set_new_handler(out_of_memory);
    hearth_memory_begin();
    if (!hearth_memory_refill()) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for the chat template");
    }
    return guarded(msg, [&] {
        auto chat = std::make_unique<hearth_chat>();
        chat->seam = make_seam();
        load_template(*chat, *params);
        chat->quoted_seam = quoted_seam(chat->seam);
        chat->cut_words = cut_words_of(chat->source);
        chat->members = members_of(chat->source);
        find_abilities(*chat);
        *out = whole(std::move(chat)).release(); /* else some of it may have been found out wrongly */
        return HEARTH_OK;
    });
}

void hearth_chat_destroy(struct hearth_chat *chat) {
    delete chat;
}

const char *hearth_chat_template(const struct hearth_chat *chat) {
    return chat->source.c_str();
}

const struct hearth_chat_abilities *hearth_chat_abilities(const struct hearth_chat *chat) {
    return &chat->abilities;
}

void hearth_chat_prompt_finish(struct hearth_chat_prompt *prompt) {
    hearth_buf_finish(&prompt->text);
}

int hearth_chat_render(struct hearth_chat *chat, const struct hearth_chat_request *request,
                       const struct hearth_chat_format *format, struct hearth_chat_prompt *out,
                       struct hearth_errmsg *msg) {
    *out = hearth_chat_prompt{{}, {}, 0, HEARTH_CHAT_NO_MARK, HEARTH_CHAT_NO_MARK, HEARTH_CHAT_NO_MARK};
    const auto run = [&] {
        const guarded_request sewn(*chat, *request, *format);
        const auto render = [&](unsigned form) { render_in(*chat, *request, sewn.request, *format, form, out); };
        if (fault_of([&] { render(chat->abilities.form); })) { /* something that was not tried at creation */
            render(chat->abilities.form | k_last_resort);
        }
        if (sewn.sewn()) {
            place_guards(*chat, request->specials, *out);
        }
        return HEARTH_OK;
    };
    return guarded(msg, run, chat);
}

} /* extern "C" */
