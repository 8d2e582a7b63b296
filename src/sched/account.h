/* Accounts: what each tenant has had of the machine, and how much more than its share that is.
 *
 * Weighted fair queueing in virtual time. A tenant has used so many microseconds of computing, each divided by its
 * weight. The machine's own virtual time is that of the tenant who has had least of those with a request that waits; it
 * never goes back. A tenant who comes to wait begins there at least, so that nobody saves up by sleeping; one who only
 * runs is short of nothing and holds nobody back. While nobody waits at all it goes on by what is computed, up to the
 * tenant who has had most: time that nobody else wanted is no debt.
 *
 * The debt is how far a tenant is ahead of the machine, at most HEARTH_DEBT_MAX_US.
 *
 * Source: A. Demers, S. Keshav, S. Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", SIGCOMM 1989;
 * P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996. Threads: the caller's. */
#ifndef HEARTH_SCHED_ACCOUNT_H
#define HEARTH_SCHED_ACCOUNT_H

#include "sched/service.h"

#include <stdint.h>

/* Tenants with an account of their own. When all of them have work, further ones share that of number zero. */
#define HEARTH_ACCOUNTS_MAX 128

struct hearth_account {
    uint64_t tenant;
    double weight;
    double used_us; /* virtual: microseconds of computing by weight */
    int64_t served_us; /* real: when a request of it was last given a lane */
    uint32_t waiting, running; /* requests */
};

/* Zeroed: nobody has had anything. */
struct hearth_accounts {
    struct hearth_account v[HEARTH_ACCOUNTS_MAX]; /* the first is tenant zero's */
    uint32_t count;
    double now_us; /* the machine's virtual time */
};

/* A request of a tenant waits; returns the tenant's account, an index. The weight is that of the last request. */
uint32_t hearth_accounts_wait(struct hearth_accounts *accounts, struct hearth_tenant tenant);
/* It waits no longer; it runs, or it is gone. */
void hearth_accounts_run(struct hearth_accounts *accounts, uint32_t account, int64_t now_us);
void hearth_accounts_gone(struct hearth_accounts *accounts, uint32_t account);
/* It runs no longer. */
void hearth_accounts_stop(struct hearth_accounts *accounts, uint32_t account);
/* So much was computed for it. */
void hearth_accounts_charge(struct hearth_accounts *accounts, uint32_t account, double us);
/* 0 to HEARTH_DEBT_MAX_US. */
int64_t hearth_accounts_debt_us(const struct hearth_accounts *accounts, uint32_t account);

#endif
