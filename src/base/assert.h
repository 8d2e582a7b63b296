/* Assertions that stay on in release builds: misuse of an interface stops the process with a line that
 * says where. */
#ifndef HEARTH_BASE_ASSERT_H
#define HEARTH_BASE_ASSERT_H

_Noreturn void hearth_assert_failed(const char *file, int line, const char *expression);

#define HEARTH_ASSERT(expression) ((expression) ? (void)0 : hearth_assert_failed(__FILE__, __LINE__, #expression))

#endif
