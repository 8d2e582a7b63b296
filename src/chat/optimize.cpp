/* Makes a Jinja program cheaper to run.
 *
 * Design. Wherever a program names a variable or a member, the engine copies a table of some dozens of functions to
 * look for one of that name: with a long history that is a third of the time. The two kinds of nodes are replaced here
 * by derived ones that look into the table where it lies. Derived, so that everything that asks for a node's kind (loop
 * variables, names of filters, targets of assignments) gets the same answer.
 *
 * They are cancel points, too: hardly a loop of a template goes round without naming something.
 *
 * Invariants. A replaced node computes what its base computes, and holds nothing that a run writes. Kinds of nodes that
 * are not listed here stay as they are, with everything below them. */
#include "chat/chat_internal.hpp"

#include <typeinfo>

namespace {

using jinja::mk_val;
using jinja::statement_ptr;
using jinja::value;

struct quick_identifier : jinja::identifier {
    using jinja::identifier::identifier;

    value execute_impl(jinja::context &context) const override {
        poll_cancel();
        value found = context.get_val(val);
        if (context.is_get_stats || !found->is_undefined()) {
            return context.is_get_stats ? jinja::identifier::execute_impl(context) : found;
        }
        const jinja::func_builtins &builtins = jinja::global_builtins();
        const auto builtin = builtins.find(val);
        return builtin != builtins.end() ? value(mk_val<jinja::value_func>(val, builtin->second)) : found;
    }
};

/* object.name */
struct quick_member : jinja::member_expression {
    std::string name;
    value key;

    quick_member(statement_ptr &&object_, statement_ptr &&property_)
        : jinja::member_expression(std::move(object_), std::move(property_), false),
          name(jinja::cast_stmt<jinja::identifier>(property)->val), key(mk_val<jinja::value_string>(name)) {
    }

    value execute_impl(jinja::context &context) const override {
        if (context.is_get_stats) {
            return jinja::member_expression::execute_impl(context);
        }
        const value owner = object->execute(context);
        const jinja::func_builtins &builtins = owner->get_builtins();
        const auto builtin = builtins.find(name);
        if (builtin != builtins.end()) {
            return mk_val<jinja::value_func>(name, builtin->second, owner);
        }
        value nothing = mk_val<jinja::value_undefined>(owner->is_undefined() ? "object_property" : name);
        return jinja::is_val<jinja::value_object>(owner) ? owner->at(key, nothing) : nothing;
    }
};

static void optimize(statement_ptr &node);

static void optimize(jinja::statements &nodes) {
    for (statement_ptr &node : nodes) {
        optimize(node);
    }
}

template <typename T, typename... Members> bool below(jinja::statement &node, Members... members) {
    auto *it = dynamic_cast<T *>(&node);
    if (it != nullptr) {
        (optimize(it->*members), ...);
    }
    return it != nullptr;
}

/* What stands below a node. A member's name is no variable and stays. */
static void optimize_below(jinja::statement &node) {
    using namespace jinja;
    auto *member = dynamic_cast<member_expression *>(&node);
    auto *object = dynamic_cast<object_literal *>(&node);
    if (member != nullptr) {
        optimize(member->object);
        if (member->computed) {
            optimize(member->property);
        }
    } else if (object != nullptr) {
        for (auto &entry : object->val) {
            optimize(entry.first);
            optimize(entry.second);
        }
    } else {
        below<if_statement>(node, &if_statement::test, &if_statement::body, &if_statement::alternate) ||
            below<for_statement>(node, &for_statement::iterable, &for_statement::body, &for_statement::default_block) ||
            below<set_statement>(node, &set_statement::val, &set_statement::body) ||
            below<macro_statement>(node, &macro_statement::args, &macro_statement::body) ||
            below<call_statement>(node, &call_statement::call, &call_statement::body) ||
            below<filter_statement>(node, &filter_statement::body) ||
            below<call_expression>(node, &call_expression::callee, &call_expression::args) ||
            below<array_literal>(node, &array_literal::val) || below<tuple_literal>(node, &tuple_literal::val) ||
            below<binary_expression>(node, &binary_expression::left, &binary_expression::right) ||
            below<filter_expression>(node, &filter_expression::operand, &filter_expression::filter) ||
            below<select_expression>(node, &select_expression::lhs, &select_expression::test) ||
            below<test_expression>(node, &test_expression::operand, &test_expression::test) ||
            below<unary_expression>(node, &unary_expression::argument) ||
            below<slice_expression>(node, &slice_expression::start_expr, &slice_expression::stop_expr,
                                    &slice_expression::step_expr) ||
            below<keyword_argument_expression>(node, &keyword_argument_expression::val) ||
            below<spread_expression>(node, &spread_expression::argument) ||
            below<ternary_expression>(node, &ternary_expression::condition, &ternary_expression::true_expr,
                                      &ternary_expression::false_expr);
    }
}

static void optimize(statement_ptr &node) {
    if (node == nullptr) {
        return;
    }
    jinja::statement &old = *node;
    optimize_below(old);
    const size_t position = old.pos;
    if (typeid(old) == typeid(jinja::identifier)) {
        node = std::make_unique<quick_identifier>(jinja::cast_stmt<jinja::identifier>(node)->val);
    } else if (typeid(old) == typeid(jinja::member_expression)) {
        auto *member = jinja::cast_stmt<jinja::member_expression>(node);
        if (!member->computed && jinja::is_stmt<jinja::identifier>(member->property)) {
            node = std::make_unique<quick_member>(std::move(member->object), std::move(member->property));
        }
    }
    node->pos = position;
}

} // namespace

void program_optimize(jinja::program &program) {
    optimize(program.body);
}
