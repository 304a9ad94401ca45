/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of knobs. Everything that takes, shows or documents a setting reads it here: the
 * settings file, the environment, the command's flags and help, docs/guide/configuration.md (a test
 * compares), and the options structs of heft/sync.h (src/sync/settings.c).
 */
#include "base/base.h"

#define DAY_MS 86400000
#define ALL (HEFT_KNOB_COORDINATOR | CLIENTS)
#define CLIENTS (MEMBERS | HEFT_KNOB_CLIENT)
#define MEMBERS (HEFT_KNOB_PUBLISHER | HEFT_KNOB_SUBSCRIBER)

#define PHASE(phase, PHASE_NAME, ms, what)                                                       \
    {                                                                                            \
        .name = phase "-ms", .variable = "HEFT_" PHASE_NAME "_MS", .value = "N", .fallback = ms, \
        .kind = HEFT_KNOB_NUMBER, .min = 1, .max = DAY_MS, .help = (what),                       \
        .users = HEFT_KNOB_COORDINATOR                                                           \
    }

static const heft_knob_t knobs[] = {
    { .name = "url",
      .variable = "HEFT_URL",
      .value = "URL",
      .kind = HEFT_KNOB_TEXT,
      .users = CLIENTS,
      .help = "The coordinator, such as http://127.0.0.1:7070." },
    { .name = "address",
      .variable = "HEFT_ADDRESS",
      .value = "ADDRESS",
      .fallback = "127.0.0.1",
      .kind = HEFT_KNOB_TEXT,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Address to listen on, as a number. One that is not loopback needs token-file, "
              "tls-cert and tls-key, or insecure." },
    { .name = "port",
      .variable = "HEFT_PORT",
      .value = "N",
      .fallback = "0",
      .kind = HEFT_KNOB_NUMBER,
      .min = 0,
      .max = 65535,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Port to listen on; 0: a free one." },
    { .name = "state",
      .variable = "HEFT_STATE",
      .value = "FILE",
      .kind = HEFT_KNOB_FILE,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Keep epoch, sequence, decision and committed version in this file, so that a "
              "restarted coordinator goes on where it was." },
    { .name = "round-log",
      .variable = "HEFT_ROUND_LOG",
      .value = "FILE",
      .kind = HEFT_KNOB_FILE,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Append the result of every round to this file, one JSON object a line. It is opened "
              "anew for each, so it can be rotated." },
    { .name = "token-file",
      .variable = "HEFT_TOKEN_FILE",
      .value = "FILE",
      .kind = HEFT_KNOB_FILE,
      .users = ALL,
      .help = "File with the token that every request must carry: one line of 16 to 256 printable "
              "characters. It must belong to the user and be closed to group and others." },
    { .name = "tls-cert",
      .variable = "HEFT_TLS_CERT",
      .value = "FILE",
      .kind = HEFT_KNOB_FILE,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Certificate chain (PEM): serve over TLS. Goes with tls-key." },
    { .name = "tls-key",
      .variable = "HEFT_TLS_KEY",
      .value = "FILE",
      .kind = HEFT_KNOB_FILE,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Private key of the certificate (PEM). It must belong to the user and be closed to "
              "group and others." },
    { .name = "ca-file",
      .variable = "HEFT_CA_FILE",
      .value = "FILE",
      .kind = HEFT_KNOB_FILE,
      .users = CLIENTS,
      .help = "Certificates (PEM) that vouch for the coordinator's. Without it: the system's." },
    { .name = "insecure",
      .variable = "HEFT_INSECURE",
      .fallback = "0",
      .kind = HEFT_KNOB_FLAG,
      .min = 0,
      .max = 1,
      .users = ALL,
      .help = "Coordinator: listen beyond loopback without token and TLS. Clients: send the token "
              "over plain HTTP beyond loopback. Whoever reaches the port can then order the fleet "
              "about; each start warns." },
    { .name = "no-feed",
      .variable = "HEFT_NO_FEED",
      .fallback = "0",
      .kind = HEFT_KNOB_FLAG,
      .min = 0,
      .max = 1,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Who joins late waits for the next push: no engine that serves feeds it." },
    { .name = "relay",
      .variable = "HEFT_RELAY",
      .value = "WHEN",
      .fallback = "auto",
      .kind = HEFT_KNOB_TEXT,
      .choices = "off auto on",
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Replicas of an engine forward to each other what the sources send to one of them: "
              "off, on, or auto: where they are on other hosts than the sources, and the sources' "
              "links would be the limit." },
    { .name = "relay-fan-out",
      .variable = "HEFT_RELAY_FAN_OUT",
      .value = "N",
      .fallback = "1",
      .kind = HEFT_KNOB_NUMBER,
      .min = 1,
      .max = 64,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "To how many replicas one of them forwards. 1 is a chain, which loads each link "
              "once." },
    PHASE("preflight", "PREFLIGHT", "60000", "Deadline of preflight."),
    PHASE("prepare", "PREPARE", "900000", "Deadline of prepare."),
    PHASE("stage", "STAGE", "1800000", "Deadline of stage: the transfer."),
    PHASE("verify", "VERIFY", "900000", "Deadline of verify: digests of what was staged."),
    PHASE("pause", "PAUSE", "180000", "Deadline of pause: every engine has stopped reading."),
    PHASE("decide", "DECIDE", "30000", "Deadline of decide."),
    PHASE("flip", "FLIP", "300000", "Deadline of flip."),
    PHASE("resume", "RESUME", "60000", "Deadline of resume."),
    PHASE("release", "RELEASE", "120000", "Deadline of release."),
    PHASE("abort", "ABORT", "180000", "Deadline of abort."),
    PHASE("contact", "CONTACT", "30000", "A member that is silent for so long is lost."),
    PHASE("poll", "POLL", "10000",
          "Longest wait of a member's poll; at most a third of contact-ms."),
    PHASE("request", "REQUEST", "30000",
          "A request that has not arrived whole after so long is broken off."),
    { .name = "max-connections",
      .variable = "HEFT_MAX_CONNECTIONS",
      .value = "N",
      .fallback = "8192",
      .kind = HEFT_KNOB_NUMBER,
      .min = 16,
      .max = 65536,
      .users = HEFT_KNOB_COORDINATOR,
      .help = "Most connections at a time, as far as the limit of open files allows. Close to it, "
              "those that have been idle longest are closed." },
    { .name = "job",
      .variable = "HEFT_JOB",
      .value = "NAME",
      .fallback = "heft",
      .kind = HEFT_KNOB_TEXT,
      .users = MEMBERS,
      .help = "Job that the member belongs to." },
    { .name = "threads",
      .variable = "HEFT_THREADS",
      .value = "N",
      .fallback = "1",
      .kind = HEFT_KNOB_NUMBER,
      .min = 1,
      .max = 1024,
      .users = MEMBERS,
      .help = "Copying threads." },
    { .name = "deadline-ms",
      .variable = "HEFT_DEADLINE_MS",
      .value = "N",
      .fallback = "30000",
      .kind = HEFT_KNOB_NUMBER,
      .min = 1,
      .max = DAY_MS,
      .users = MEMBERS,
      .help = "Deadline of every call to the coordinator." },
    { .name = "transport",
      .variable = "HEFT_TRANSPORT",
      .value = "NAME",
      .fallback = "auto",
      .kind = HEFT_KNOB_TEXT,
      .choices = "auto shm ucx",
      .users = MEMBERS,
      .help = "How weights get to destinations: shm (shared memory of one host), ucx (OpenUCX, "
              "between hosts), or auto: shm between processes of one host, else ucx, which is "
              "offered when the coordinator is not on loopback." },
    { .name = "host",
      .variable = "HEFT_HOST",
      .value = "NAME",
      .kind = HEFT_KNOB_TEXT,
      .users = MEMBERS,
      .help = "Which host this process counts as being on when it is chosen who of several that "
              "hold the same sends it: members of one name are near each other. Without it, as "
              "the kernel tells. Transports go by the kernel in any case." },
    { .name = "ucx-devices",
      .variable = "HEFT_UCX_DEVICES",
      .value = "LIST",
      .kind = HEFT_KNOB_TEXT,
      .users = MEMBERS,
      .help = "Network devices that ucx may use, as OpenUCX names them, such as mlx5_0:1,mlx5_1:1 "
              "or eth0. Without it: all. UCX_NET_DEVICES goes first." },
    { .name = "ucx-lanes",
      .variable = "HEFT_UCX_LANES",
      .value = "N",
      .fallback = "1",
      .kind = HEFT_KNOB_NUMBER,
      .min = 1,
      .max = 64,
      .users = MEMBERS,
      .help = "Network devices that share the load of one connection of ucx. UCX_MAX_RNDV_LANES "
              "goes first." },
    { .name = "ucx-silence-ms",
      .variable = "HEFT_UCX_SILENCE_MS",
      .value = "N",
      .fallback = "15000",
      .kind = HEFT_KNOB_NUMBER,
      .min = 1,
      .max = DAY_MS,
      .users = MEMBERS,
      .help = "A receiver of ucx that takes part in a transfer and says nothing for so long is "
              "lost; one that sends, whose words come after its bytes, when it has been eight "
              "times as long." },
    { .name = "ucx-allow-tcp",
      .variable = "HEFT_UCX_ALLOW_TCP",
      .fallback = "0",
      .kind = HEFT_KNOB_FLAG,
      .min = 0,
      .max = 1,
      .users = MEMBERS,
      .help = "Let ucx use tcp between processes that could share memory. For tests, and for "
              "containers where shared memory does not work." },
    { .name = "max-rate",
      .variable = "HEFT_MAX_RATE",
      .value = "BYTES",
      .fallback = "0",
      .kind = HEFT_KNOB_BYTES,
      .min = 0,
      .max = INT64_MAX,
      .users = HEFT_KNOB_PUBLISHER,
      .help = "At most so many bytes per second to all destinations together, to leave bandwidth "
              "to the trainer; 0: no limit." },
    { .name = "log",
      .variable = "HEFT_LOG",
      .value = "LEVEL",
      .fallback = "warn",
      .kind = HEFT_KNOB_TEXT,
      .choices = "error warn info debug trace",
      .users = ALL,
      .help = "What is logged to standard error: error, warn, info (members that come and go, "
              "rounds and their phases), debug or trace." },
    { .name = "log-format",
      .variable = "HEFT_LOG_FORMAT",
      .value = "FORMAT",
      .fallback = "plain",
      .kind = HEFT_KNOB_TEXT,
      .choices = "plain text json",
      .users = ALL,
      .help = "plain; text: with the time, as key=value; json: one object a line." },
    { .name = "settings",
      .variable = "HEFT_SETTINGS",
      .value = "FILE",
      .kind = HEFT_KNOB_FILE,
      .users = HEFT_KNOB_PROCESS,
      .help = "The settings file." },
    { .name = "recipes",
      .variable = "HEFT_RECIPES",
      .value = "FOLDERS",
      .kind = HEFT_KNOB_TEXT,
      .users = HEFT_KNOB_PROCESS,
      .help = "Folders with recipes, separated by colons, looked through before those that come "
              "with heft." },
    { .name = "cpu",
      .variable = "HEFT_CPU",
      .value = "LEVEL",
      .kind = HEFT_KNOB_TEXT,
      .choices = "scalar avx2 avx2-wide avx512",
      .users = HEFT_KNOB_PROCESS,
      .help = "The highest instruction set that kernels use: scalar, avx2, avx2-wide or avx512." },
};

const heft_knob_t *heft__knobs(uint32_t *n_out)
{
    *n_out = sizeof knobs / sizeof knobs[0];
    return knobs;
}

uint32_t heft_config_get_n_knobs(void)
{
    return sizeof knobs / sizeof knobs[0];
}

const heft_knob_t *heft_config_get_knob(uint32_t i)
{
    return i < sizeof knobs / sizeof knobs[0] ? &knobs[i] : NULL;
}
