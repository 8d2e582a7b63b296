/* Accounts: what each tenant has used of the machine, and how far that is ahead of its fair share.
 *
 * Weighted fair queueing with start tags (start-time fair queueing). A tenant's virtual time is the microseconds of
 * computing that it has used, divided by its weight. The machine's virtual time is the smallest one of the tenants with
 * a waiting request; it never goes back. A tenant's virtual time is moved up to it when its first request begins to
 * wait, so that idle time is not saved up. A tenant that only runs does not hold the machine's time back. While no
 * request waits, the machine's time advances by what is computed, up to the largest virtual time of the running
 * tenants, because computing that no other tenant wanted is no lead.
 *
 * The lead is how far a tenant's virtual time is ahead of the machine's, at most HEARTH_LEAD_MAX_US. Example: two
 * tenants of weight 1 wait; one has used 12 s, the other 9 s. The machine stands at 9 s, the leads are 3 s and 0.
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
    double used_us;            /* virtual time: microseconds of computing, divided by the weight */
    int64_t last_run_us;       /* real: when one of its requests last got a lane */
    uint32_t waiting, running; /* how many requests */
};

/* Zeroed: no tenant has used anything. */
struct hearth_accounts {
    struct hearth_account v[HEARTH_ACCOUNTS_MAX]; /* v[0] is tenant zero's */
    uint32_t count;
    double now_us; /* the machine's virtual time */
};

/* Counts one more waiting request of the tenant, and takes over the request's weight. Returns the index of the tenant's
 * account. */
uint32_t hearth_accounts_wait(struct hearth_accounts *accounts, struct hearth_tenant tenant);
/* One waiting request fewer: it got a lane (run), or it was dropped (gone). */
void hearth_accounts_run(struct hearth_accounts *accounts, uint32_t account, int64_t now_us);
void hearth_accounts_gone(struct hearth_accounts *accounts, uint32_t account);
/* One running request fewer. */
void hearth_accounts_stop(struct hearth_accounts *accounts, uint32_t account);
/* Charges `us` of computing to the account. */
void hearth_accounts_charge(struct hearth_accounts *accounts, uint32_t account, double us);
/* The account's lead over the machine's virtual time: 0 to HEARTH_LEAD_MAX_US. */
int64_t hearth_accounts_lead_us(const struct hearth_accounts *accounts, uint32_t account);

#endif
