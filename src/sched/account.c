/* Accounts. Design in account.h.
 *
 * Invariant: used_us of a tenant with a waiting request is never below now_us. */
#include "sched/account.h"

#include "base/assert.h"

static bool has_work(const struct hearth_account *account) {
    return account->waiting + account->running > 0;
}

/* Advances the machine's virtual time after `us` of computing. `us` is divided by the weight, too; otherwise the
 * machine's time would fall behind that of a tenant of little weight. */
static void advance(struct hearth_accounts *accounts, double us) {
    double least = -1, least_running = -1, most_running = -1;
    for (const struct hearth_account *a = accounts->v; a < accounts->v + accounts->count; a++) {
        if (a->waiting > 0 && (least < 0 || a->used_us < least)) {
            least = a->used_us;
        }
        if (a->running > 0 && (least_running < 0 || a->used_us < least_running)) {
            least_running = a->used_us;
        }
        if (a->running > 0 && a->used_us > most_running) {
            most_running = a->used_us;
        }
    }
    if (least < 0) { /* no request waits */
        least = accounts->now_us + us < most_running ? accounts->now_us + us : most_running;
        least = least > least_running ? least : least_running;
    }
    if (least > accounts->now_us) {
        accounts->now_us = least;
    }
}

/* The account of a tenant. When all accounts are taken, a new tenant takes over the account of one without work, or
 * else shares account zero. */
static uint32_t open_account(struct hearth_accounts *accounts, uint64_t tenant) {
    uint32_t idle = 0;
    if (accounts->count == 0) {
        accounts->v[accounts->count++] = (struct hearth_account){.weight = 1};
    }
    for (uint32_t i = 0; i < accounts->count; i++) {
        const struct hearth_account *a = &accounts->v[i];
        if (a->tenant == tenant) {
            return i;
        }
        if (i > 0 && !has_work(a) && (idle == 0 || a->used_us < accounts->v[idle].used_us)) {
            idle = i;
        }
    }
    if (accounts->count < HEARTH_ACCOUNTS_MAX) {
        idle = accounts->count++;
    }
    if (idle > 0) {
        accounts->v[idle] = (struct hearth_account){.tenant = tenant, .weight = 1};
    }
    return idle;
}

uint32_t hearth_accounts_wait(struct hearth_accounts *accounts, struct hearth_tenant tenant) {
    uint32_t index = open_account(accounts, tenant.id);
    struct hearth_account *account = &accounts->v[index];
    if (account->tenant == tenant.id) {
        account->weight = tenant.weight > 0 ? tenant.weight : 1;
    }
    if (account->waiting++ == 0 && account->used_us < accounts->now_us) {
        account->used_us = accounts->now_us;
    }
    return index;
}

void hearth_accounts_run(struct hearth_accounts *accounts, uint32_t account, int64_t now_us) {
    hearth_accounts_gone(accounts, account);
    accounts->v[account].last_run_us = now_us;
    accounts->v[account].running++;
}

void hearth_accounts_gone(struct hearth_accounts *accounts, uint32_t account) {
    HEARTH_ASSERT(account < accounts->count && accounts->v[account].waiting > 0);
    accounts->v[account].waiting--;
}

void hearth_accounts_stop(struct hearth_accounts *accounts, uint32_t account) {
    HEARTH_ASSERT(account < accounts->count && accounts->v[account].running > 0);
    accounts->v[account].running--;
}

void hearth_accounts_charge(struct hearth_accounts *accounts, uint32_t account, double us) {
    HEARTH_ASSERT(account < accounts->count && us >= 0);
    double virtual_us = us / accounts->v[account].weight;
    accounts->v[account].used_us += virtual_us;
    advance(accounts, virtual_us);
}

int64_t hearth_accounts_lead_us(const struct hearth_accounts *accounts, uint32_t account) {
    double ahead = accounts->v[account].used_us - accounts->now_us;
    return ahead <= 0 ? 0 : ahead >= HEARTH_LEAD_MAX_US ? HEARTH_LEAD_MAX_US : (int64_t)ahead;
}
