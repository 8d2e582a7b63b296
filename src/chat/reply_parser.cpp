/* Reading a reply: the PEG parser of the format over a text, and what its tree says beyond the message.
 *
 * Design. The parser is always run in its lenient mode, which takes every beginning of a reply; the tree then tells how
 * far the message shows the text (`claimed`), whether a call is still open, and whether the text ends where anything
 * may follow until a delimiter (`end`). The delimiters are taken from the parser itself: an until-parser that is all of
 * a tagged place goes on exactly as long as none of its delimiters turns up.
 *
 * Invariants. A reader never changes once made. Texts are cut at character boundaries. Nothing is parsed that nests
 * deeper than k_max_nesting: the callers ask a nesting_guard first. */
#include "chat/reply_parser.hpp"

#include <algorithm>
#include <cctype>

using builder = common_chat_peg_builder;

/* ------------------------------------------------------------------------------------------------- delimiters */

void delimiter_set::add_delimiter(const std::string &text) {
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) {
        texts.push_back(text);
        first[static_cast<unsigned char>(text[0])] = true;
    }
}

size_t delimiter_set::find_next(std::string_view text, size_t from, bool *whole) const {
    for (size_t i = from; i < text.size(); i++) {
        if (!first[static_cast<unsigned char>(text[i])]) {
            continue;
        }
        const std::string_view rest = text.substr(i);
        bool begun = false;
        for (const std::string &delimiter : texts) {
            const size_t n = std::min(delimiter.size(), rest.size());
            if (rest.compare(0, n, delimiter, 0, n) == 0) {
                begun = true;
                if (n == delimiter.size()) {
                    *whole = true;
                    return i;
                }
            }
        }
        if (begun) {
            *whole = false;
            return i;
        }
    }
    *whole = false;
    return text.size();
}

size_t json_scanner::scan_value(std::string_view text, size_t from) {
    for (size_t i = from; i < text.size(); i++) {
        const char c = text[i];
        if (escaped) {
            escaped = false;
        } else if (in_string) {
            escaped = c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return std::string::npos;
}

/* ------------------------------------------------------------------------------------------------- nesting */

namespace {

/* What may stand in a JSON or Python value outside of strings: any other byte ends all values that are being followed,
 * so that brackets in prose do not add up. */
constexpr std::string_view k_value_bytes = "[]{},:\"' \t\r\n+-.0123456789aeflnorstuEFNT\\";
constexpr std::string_view k_gemma_quote = "<|\"|>";

static bool is_value_byte(unsigned char c, bool gemma) {
    return gemma ? c >= 0x20 || c == '\t' || c == '\n' || c == '\r'
                 : k_value_bytes.find(static_cast<char>(c)) != std::string_view::npos;
}

} // namespace

void nesting_guard::count_depth(std::string_view text) {
    const char c = text[pos_];
    std::array<int, STATES> next;
    next.fill(-1);
    const auto go = [&next](int state, int depth) {
        next[static_cast<size_t>(state)] = std::max(next[static_cast<size_t>(state)], depth);
    };
    go(c == '"' ? OUTSIDE : c == '\\' ? DOUBLE_ESCAPE : DOUBLE, depth_[DOUBLE]);
    go(c == '\'' ? OUTSIDE : c == '\\' ? SINGLE_ESCAPE : SINGLE, depth_[SINGLE]);
    go(DOUBLE, depth_[DOUBLE_ESCAPE]);
    go(SINGLE, depth_[SINGLE_ESCAPE]);
    const bool quote = gemma_ && text.compare(pos_, k_gemma_quote.size(), k_gemma_quote) == 0;
    go(quote ? OUTSIDE : GEMMA, depth_[GEMMA]);
    const int outside = depth_[OUTSIDE];
    if (c == '[' || c == '{') {
        go(OUTSIDE, std::max(outside, 0) + 1);
    } else if (outside >= 0) {
        if (quote) {
            go(GEMMA, outside);
        } else if (!gemma_ && c == '"') {
            go(DOUBLE, outside);
        } else if (!gemma_ && c == '\'') {
            go(SINGLE, outside);
        } else if (c == ']' || c == '}') {
            go(OUTSIDE, outside > 1 ? outside - 1 : -1);
        } else if (is_value_byte(static_cast<unsigned char>(c), gemma_) && !(gemma_ && c == '<')) {
            go(OUTSIDE, outside);
        }
    }
    depth_ = next;
    pos_ += quote ? k_gemma_quote.size() : 1;
}

bool nesting_guard::too_deep(std::string_view text) {
    const size_t keep = gemma_ ? k_gemma_quote.size() - 1 : 0; /* a quote may be incomplete */
    while (at_ == std::string::npos && pos_ + keep < text.size()) {
        count_depth(text);
        if (depth_[OUTSIDE] > static_cast<int>(k_max_nesting)) {
            at_ = pos_ - 1;
        }
    }
    return at_ != std::string::npos;
}

/* ------------------------------------------------------------------------------------------------- the format */

reply_reader::reply_reader(const struct hearth_chat_format &format) : format_(format) {
    collect_delimiters(format.parser.parser);
    /* Longest first: one may begin with another. */
    std::sort(closers_.begin(), closers_.end(),
              [](const std::string &a, const std::string &b) { return a.size() > b.size(); });
}

/* Adds the delimiters of a parser that takes any text up to one of them; null when it is another kind of parser. */
const delimiter_set *reply_reader::free_text(const common_peg_arena &arena, common_peg_parser_id id,
                                             delimiter_set &out) const {
    for (int hops = 0; hops < 16; hops++) {
        const common_peg_parser_variant &parser = arena.get(id);
        if (const auto *until = std::get_if<common_peg_until_parser>(&parser)) {
            for (const std::string &delimiter : until->delimiters) {
                out.add_delimiter(delimiter);
            }
            return &out;
        }
        if (const auto *rule = std::get_if<common_peg_rule_parser>(&parser)) {
            id = rule->child;
        } else if (const auto *ref = std::get_if<common_peg_ref_parser>(&parser)) {
            id = arena.get_rule(ref->name);
        } else if (const auto *ac = std::get_if<common_peg_ac_parser>(&parser)) {
            id = ac->child;
        } else {
            return nullptr;
        }
    }
    return nullptr;
}

void reply_reader::collect_delimiters(const common_peg_arena &arena) {
    const std::string_view begin = format_.info.call_begin != nullptr ? format_.info.call_begin : "";
    const auto begins_call = [begin](const std::string_view text) {
        const size_t n = std::min(text.size(), begin.size());
        return !begin.empty() && text.substr(0, n) == begin.substr(0, n);
    };
    for (common_peg_parser_id id = 0; id < arena.size(); id++) {
        const common_peg_parser_variant &parser = arena.get(id);
        free_place *where = nullptr;
        common_peg_parser_id child = id;
        if (const auto *tag = std::get_if<common_peg_tag_parser>(&parser)) {
            where = tag->tag == builder::CONTENT                 ? &content_
                    : tag->tag == builder::REASONING             ? &reasoning_
                    : tag->tag == builder::TOOL_ARG_STRING_VALUE ? &string_value_
                                                                 : nullptr;
            child = tag->child;
        } else if (const auto *rule = std::get_if<common_peg_rule_parser>(&parser)) {
            where = rule->name == "gemma4-string-content" ? &gemma_string_ : nullptr;
            child = rule->child;
        } else if (std::holds_alternative<common_peg_until_parser>(parser)) {
            free_text(arena, id, all_);
        } else if (const auto *literal = std::get_if<common_peg_literal_parser>(&parser)) {
            const std::string &text = literal->literal;
            if (text.size() >= 3 && (text[0] == '<' || text[0] == '[') && !begins_call(text)) {
                closers_.push_back(text);
            }
        }
        if (where != nullptr && free_text(arena, child, where->delimiters) == nullptr) {
            where->free = false;
        }
    }
}

bool reply_reader::may_be_undone(std::string_view text) const {
    size_t longest = 1;
    for (const std::string &delimiter : all_.texts) {
        longest = std::max(longest, delimiter.size());
    }
    for (size_t from = text.size() > longest ? text.size() - longest : 0; from < text.size(); from++) {
        bool whole = false;
        from = all_.find_next(text, from, &whole);
        if (from < text.size() && !whole) {
            return true;
        }
    }
    return false;
}

size_t reply_reader::skip_closers(std::string_view text, size_t from, bool partly) const {
    for (;;) {
        while (from < text.size() && isspace(static_cast<unsigned char>(text[from])) != 0) {
            from++;
        }
        const std::string_view rest = text.substr(from);
        const auto closer = std::find_if(closers_.begin(), closers_.end(), [rest, partly](const std::string &each) {
            const size_t n = partly ? std::min(each.size(), rest.size()) : each.size();
            return rest.compare(0, n, each, 0, n) == 0;
        });
        if (rest.empty() || closer == closers_.end()) {
            return from;
        }
        from += std::min(closer->size(), rest.size());
    }
}

/* ------------------------------------------------------------------------------------------------- reading */

namespace {

/* How far the message shows the text, in the order of the text. */
struct claim_walk {
    const common_peg_ast_arena &ast;
    reply_reading &out;

    void visit(common_peg_ast_id id, bool in_call) {
        const common_peg_ast_node &node = ast.get(id);
        const bool call = node.tag == builder::TOOL || (node.tag == builder::TOOL_OPEN && !in_call);
        if (call) {
            out.before_call = out.claimed;
            out.call_nodes++;
            out.call_closed = false;
        }
        out.call_closed = out.call_closed || node.tag == builder::TOOL_CLOSE;
        if (node.tag == builder::CONTENT) {
            out.claimed = {part::content, node.end};
        } else if (node.tag == builder::REASONING) {
            out.claimed = {part::reasoning, node.end};
        } else if (node.tag != builder::TOOL_ARGS) {
            for (const common_peg_ast_id child : node.children) {
                visit(child, in_call || call);
            }
        }
        const bool of_call = node.tag.compare(0, 4, "tool") == 0;
        const bool around_call = !node.is_partial && out.claimed.what == part::call;
        if (of_call || around_call) {
            out.claimed = {part::call, std::max(out.claimed.end, node.end)};
        }
    }
};

static bool begins_json(const common_peg_ast_arena &ast, const common_peg_ast_node &node) {
    return !node.children.empty() && ast.get(node.children.back()).rule.compare(0, 5, "json-") == 0 &&
           !node.text.empty() && (node.text[0] == '{' || node.text[0] == '[');
}

static std::unique_ptr<common_chat_peg_mapper> mapper_for(common_chat_format format, common_chat_msg &message) {
    switch (format) {
    case COMMON_CHAT_FORMAT_PEG_GEMMA4: return std::make_unique<common_chat_peg_gemma4_mapper>(message);
    case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3: return std::make_unique<common_chat_peg_minimax_m3_mapper>(message);
    default: return std::make_unique<common_chat_peg_mapper>(message);
    }
}

} // namespace

/* Follows the last node of the tree down to where the text goes on. */
void reply_reader::find_open_end(const common_peg_ast_arena &ast, common_peg_ast_id id, size_t size,
                                 reply_reading &out) const {
    const free_place *where = nullptr;
    open_end end;
    for (;;) {
        const common_peg_ast_node &node = ast.get(id);
        if (!node.is_partial) {
            return;
        }
        const bool content = node.tag == builder::CONTENT;
        if ((content || node.tag == builder::TOOL_ARGS || node.tag == builder::TOOL_ARG_VALUE) &&
            begins_json(ast, node)) {
            out.end.kind = end_kind::value;
            out.end.field = content ? end_field::content : end_field::arguments;
            out.end.start = node.start;
            out.end.len = node.end - node.start;
            return;
        }
        if (content || node.tag == builder::REASONING) {
            where = content ? &content_ : &reasoning_;
            end.field = content ? end_field::content : end_field::reasoning;
            end.start = node.start;
        } else if (node.tag == builder::TOOL_ARG_STRING_VALUE || node.rule == "gemma4-string-content") {
            where = node.rule.empty() ? &string_value_ : &gemma_string_;
            end.field = end_field::arguments;
            end.escaped = true;
            end.start = node.start;
        }
        if (where != nullptr && (!where->free || node.end != size)) {
            return;
        }
        if (node.children.empty()) {
            break;
        }
        id = node.children.back();
    }
    if (where != nullptr) {
        end.kind = end_kind::text;
        end.delimiters = &where->delimiters;
        end.len = size - end.start;
        out.end = end;
    }
}

reply_reading reply_reader::read_reply(const std::string &text) const {
    reply_reading out;
    common_peg_parse_context context(text, COMMON_PEG_PARSE_FLAG_LENIENT);
    const common_peg_parse_result result = format_.parser.parser.parse(context);
    if (result.fail()) {
        return out;
    }
    out.state = result.success() ? fit::whole : fit::open;
    mapper_for(format_.parser.format, out.message)->from_ast(context.ast, result);
    claim_walk walk{context.ast, out};
    for (const common_peg_ast_id id : result.nodes) {
        walk.visit(id, false);
    }
    if (result.success()) {
        /* What the grammar does not ask for stands behind its end. */
        out.claimed = {part::call, result.end};
    } else if (!result.nodes.empty()) {
        find_open_end(context.ast, result.nodes.back(), text.size(), out);
    }
    return out;
}

bool reply_reader::can_read(const std::string &text) const {
    common_peg_parse_context context(text, COMMON_PEG_PARSE_FLAG_LENIENT);
    return !format_.parser.parser.parse(context).fail();
}
