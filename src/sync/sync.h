/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sync: rounds. The coordinator (round, wire, record, objects, coordinator, http_server), its
 * clients (http_client) and the members (member, publisher, subscriber, staging).
 */
#ifndef HEFT_SYNC_SYNC_H
#define HEFT_SYNC_SYNC_H

#include "base/base.h"
#include "heft/sync.h"
#include "sync/http_client.h"
#include "sync/wire.h"

#endif
