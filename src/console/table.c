/* Cells are sanitized when they are added, so that their width is known before the first row is printed. */
#include "console/table.h"

#include "base/assert.h"
#include "base/buf.h"
#include "console/show.h"

#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void hearth_show_table_init(struct hearth_show_table *table, const struct hearth_show_column *columns, size_t count,
                            const char *indent) {
    HEARTH_ASSERT(count <= HEARTH_SHOW_TABLE_COLUMNS);
    *table = (struct hearth_show_table){.columns = columns, .column_count = count, .indent = indent};
    for (size_t i = 0; i < count; i++) {
        table->widths[i] = columns[i].title ? (int)strlen(columns[i].title) : 0;
    }
}

static bool add_cell(struct hearth_show_table *table, size_t column, const char *text) {
    const int most = table->columns[column].most;
    struct hearth_show_cell cell = {0};
    size_t len;
    FILE *memory =
        HEARTH_BUF_ROOM(table->cells, table->cell_count, table->cell_cap) ? open_memstream(&cell.text, &len) : NULL;
    if (memory) {
        cell.width = hearth_show_text(memory, text, most > 0 ? most : INT_MAX);
        (void)fclose(memory);
    }
    if (cell.text) {
        table->cells[table->cell_count++] = cell;
        table->widths[column] = cell.width > table->widths[column] ? cell.width : table->widths[column];
    }
    return cell.text != NULL;
}

void hearth_show_table_add(struct hearth_show_table *table, const char *const cells[]) {
    for (size_t i = 0; i < table->column_count && !table->nomem; i++) {
        table->nomem = !add_cell(table, i, cells[i]);
    }
}

void hearth_show_table_addf(struct hearth_show_table *table, const char *format, ...) {
    const char *cells[HEARTH_SHOW_TABLE_COLUMNS];
    char *text, *rest;
    va_list args;
    va_start(args, format);
    table->nomem = vasprintf(&text, format, args) < 0 || table->nomem;
    va_end(args);
    if (!table->nomem) {
        rest = text;
        for (size_t i = 0; i < table->column_count; i++) {
            cells[i] = strsep(&rest, "\t");
        }
        hearth_show_table_add(table, cells);
        free(text);
    }
}

static int print_cell(const struct hearth_show_table *table, size_t column, const char *text, int width) {
    if (!table->columns[column].title) {
        return 0;
    }
    const int gap = table->widths[column] - width;
    const bool left = table->columns[column].left;
    (void)printf("%*s%s%*s  ", left ? 0 : gap, "", text, left ? gap : 0, "");
    return table->widths[column] + 2;
}

bool hearth_show_table_head(const struct hearth_show_table *table, const char *last_title) {
    if (table->nomem) {
        return false;
    }
    (void)fputs(table->indent, stdout);
    for (size_t i = 0; i < table->column_count; i++) {
        const char *title = table->columns[i].title;
        (void)print_cell(table, i, title, title ? (int)strlen(title) : 0);
    }
    (void)printf("%s\n", last_title);
    return true;
}

int hearth_show_table_row(const struct hearth_show_table *table, size_t row) {
    int used = printf("%s", table->indent);
    for (size_t i = 0; i < table->column_count; i++) {
        const struct hearth_show_cell *cell = &table->cells[row * table->column_count + i];
        used += print_cell(table, i, cell->text, cell->width);
    }
    return hearth_show_columns() - used;
}

void hearth_show_table_print(const struct hearth_show_table *table) {
    if (hearth_show_table_head(table, "")) {
        for (size_t i = 0; i < table->cell_count / table->column_count; i++) {
            (void)hearth_show_table_row(table, i);
            (void)putchar('\n');
        }
    }
}

int hearth_show_table_end(struct hearth_show_table *table) {
    for (size_t i = 0; i < table->cell_count; i++) {
        free(table->cells[i].text);
    }
    free(table->cells);
    return table->nomem ? hearth_complain(1, "out of memory") : 0;
}
