/* Lists for people: rows of text in columns that are as wide as their widest cell, with free text behind them. */
#ifndef HEARTH_CONSOLE_TABLE_H
#define HEARTH_CONSOLE_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#define HEARTH_SHOW_TABLE_COLUMNS 12

struct hearth_show_column {
    const char *title; /* NULL: the column is left out */
    bool left;         /* cells begin at its left edge */
    int most;          /* columns of the terminal for a cell; 0: what it needs */
};

struct hearth_show_table {
    const struct hearth_show_column *columns; /* borrowed */
    size_t column_count;
    const char *indent; /* before each row */
    struct hearth_show_cell {
        char *text;
        int width;
    } *cells; /* row by row */
    size_t cell_count, cell_cap;
    bool nomem; /* a cell is missing: nothing is printed */
    int widths[HEARTH_SHOW_TABLE_COLUMNS];
};

void hearth_show_table_init(struct hearth_show_table *table, const struct hearth_show_column *columns, size_t count,
                            const char *indent);
/* Adds a row with a cell for each column. Cells may be text of clients: no control characters of it are printed. */
void hearth_show_table_add(struct hearth_show_table *table, const char *const cells[]);
/* Likewise, with tabs between the cells. */
void hearth_show_table_addf(struct hearth_show_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints the titles, with that of the free text. False: a row is missing. */
bool hearth_show_table_head(const struct hearth_show_table *table, const char *last_title);
/* Prints a row without its end. Returns how many columns of the terminal are left for the free text. */
int hearth_show_table_row(const struct hearth_show_table *table, size_t row);
/* Prints a table without free text. */
void hearth_show_table_print(const struct hearth_show_table *table);
/* Frees it. Returns an exit status: 1 after a complaint if a row is missing. */
int hearth_show_table_end(struct hearth_show_table *table);

#endif
