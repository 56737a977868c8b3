// What threads of a block do together, barriers and warp collectives, and what goes wrong with it.
#include <cstdio>
#include <cstring>

#include "worker.h"

namespace llmc2py {

// A lane has left: what the others wait for may be complete without it.
void Worker::release_warps(unsigned int warp)
{
    for (unsigned int lanes = warps[warp].waiting; lanes != 0;) {
        const unsigned int mask = threads[warp * 32 + static_cast<unsigned int>(__builtin_ctz(lanes))].mask;
        lanes &= ~mask;
        complete_collective(warp, mask);
    }
}

unsigned int Worker::barrier(bool predicate, unsigned int *present, Site site)
{
    Thread &thread = threads[current];
    thread.state = State::barrier;
    thread.site = site;
    ++arrived;
    votes += predicate ? 1u : 0u;
    if (arrived == live) {
        release_barrier();
    }
    resume(thread.fiber->context);
    *present = static_cast<unsigned int>(thread.payload.word[0]);
    return thread.result;
}

void Worker::release_barrier()
{
    const Thread *first = find(State::barrier);
    if (left_midway > 0) {
        char what[256];
        std::snprintf(what, sizeof what,
                      "divergent barrier: %u of %u threads wait at __syncthreads(), %u have left the kernel since the "
                      "barrier before",
                      arrived, count, left_midway);
        fail(Fault::divergence, what, first->site);
    }
    if (checker != nullptr && live < count) {
        checker_divergence(checker, *this, first->site, first->site, count - live);
    }
    for (unsigned int number = 0; number < count; ++number) {
        Thread &thread = threads[number];
        if (number >= next || thread.state != State::barrier) {
            continue;
        }
        if (checker != nullptr && thread.site.line != first->site.line) {
            checker_divergence(checker, *this, first->site, thread.site, 0);
        }
        thread.result = votes;
        thread.payload.word[0] = arrived;
        thread.state = State::ready;
        ++thread.barriers;
        ready.add(number);
    }
    arrived = votes = 0;
    ++events;
    if (checker != nullptr) {
        checker_barrier(checker);
    }
}

unsigned int Worker::collective(Collective kind, unsigned int mask, int source, Payload *payload, Site site)
{
    Thread &thread = threads[current];
    const unsigned int lane = current & 31;
    thread.state = State::collective;
    thread.kind = kind;
    thread.mask = mask | (1u << lane);
    thread.source = source;
    thread.payload = *payload;
    thread.site = site;
    warps[current >> 5].waiting |= 1u << lane;
    complete_collective(current >> 5, thread.mask);
    resume(thread.fiber->context);
    *payload = thread.payload;
    return thread.result;
}

// Releases the lanes of ``mask`` if all of them that still run have arrived, and for the same thing.
bool Worker::complete_collective(unsigned int warp, unsigned int mask)
{
    const unsigned int participants = mask & warps[warp].alive;
    if ((participants & ~warps[warp].waiting) != 0 || participants == 0) {
        return false;
    }
    const Thread &first = threads[warp * 32 + static_cast<unsigned int>(__builtin_ctz(participants))];
    for (unsigned int lanes = participants; lanes != 0; lanes &= lanes - 1) {
        const Thread &thread = threads[warp * 32 + static_cast<unsigned int>(__builtin_ctz(lanes))];
        if (thread.mask != mask || thread.kind != first.kind) {
            return false;
        }
    }
    finish_collective(warp, participants);
    return true;
}

void Worker::finish_collective(unsigned int warp, unsigned int participants)
{
    Thread *lanes = threads + warp * 32;
    Payload given[32];
    unsigned int ballot = 0;
    unsigned int epoch = 0;
    for (unsigned int rest = participants; rest != 0; rest &= rest - 1) {
        const unsigned int lane = static_cast<unsigned int>(__builtin_ctz(rest));
        given[lane] = lanes[lane].payload;
        ballot |= given[lane].word[0] != 0 ? 1u << lane : 0u;
        epoch = lanes[lane].warp_epoch > epoch ? lanes[lane].warp_epoch : epoch;
    }
    for (unsigned int rest = participants; rest != 0; rest &= rest - 1) {
        const unsigned int lane = static_cast<unsigned int>(__builtin_ctz(rest));
        Thread &thread = lanes[lane];
        const unsigned int source = static_cast<unsigned int>(thread.source) & 31u;
        if (thread.kind == Collective::shuffle && ((participants >> source) & 1u) != 0) {
            thread.payload = given[source];
        } else if (thread.kind == Collective::shuffle && checker != nullptr) {
            checker_inactive_lane(checker, *this, thread.site);
        } else if (thread.kind == Collective::ballot) {
            thread.result = ballot;
        } else if (thread.kind == Collective::active) {
            thread.result = participants;
        } else if (thread.kind == Collective::sync) {
            thread.warp_epoch = epoch + 1;
        } else if (thread.kind == Collective::match) {
            thread.result = 0;
            for (unsigned int others = participants; others != 0; others &= others - 1) {
                const unsigned int other = static_cast<unsigned int>(__builtin_ctz(others));
                thread.result |= std::memcmp(&given[other], &given[lane], sizeof(Payload)) == 0 ? 1u << other : 0u;
            }
        }
        thread.state = State::ready;
        ready.add(warp * 32 + lane);
    }
    warps[warp].waiting &= ~participants;
    ++events;
}

// Lanes that ask who is active wait until nobody of their warp can still join them.
bool Worker::release_active()
{
    for (unsigned int warp = 0; warp * 32 < count; ++warp) {
        unsigned int asking = 0;
        for (unsigned int rest = warps[warp].waiting; rest != 0; rest &= rest - 1) {
            const unsigned int lane = static_cast<unsigned int>(__builtin_ctz(rest));
            if (threads[warp * 32 + lane].kind == Collective::active) {
                asking |= 1u << lane;
            }
        }
        if (asking != 0) {
            finish_collective(warp, asking);
        }
    }
    return !ready.empty();
}

const Thread *Worker::find(State state) const
{
    for (unsigned int number = 0; number < next; ++number) {
        if (threads[number].state == state) {
            return &threads[number];
        }
    }
    return nullptr;
}

// Every thread that has not exited waits, and no event is left that could wake one.
void Worker::stalled()
{
    if (release_active()) {
        return;
    }
    char what[640];
    const Thread *lane = find(State::collective);
    const Thread *waiting = find(State::barrier);
    if (waiting != nullptr) {
        std::snprintf(what, sizeof what,
                      "divergent barrier: %u of %u threads wait at __syncthreads(), thread (%u,%u,%u) waits for other "
                      "lanes of its warp at %s:%d",
                      arrived, live, lane->index.x, lane->index.y, lane->index.z, lane->site.file, lane->site.line);
        fail(Fault::divergence, what, waiting->site);
    }
    std::snprintf(what, sizeof what,
                  "deadlock in a warp: thread (%u,%u,%u) waits for the lanes of mask 0x%08x, and not all of them come",
                  lane->index.x, lane->index.y, lane->index.z, lane->mask);
    fail(Fault::deadlock, what, lane->site);
}

}  // namespace llmc2py
