/* The plain HTTP pages that a load balancer, an orchestrator and Prometheus ask for. Health is that
 * the process answers at all; ready is that it serves. */
#include <inttypes.h>
#include <stdio.h>

#include "object/internal.h"

#define PAGE_BYTES ((size_t)1 << 20) /* the metrics page is some 30 KiB */

static void reply_json(struct oc_http *req, int status, const char *body) {
    oc_http_reply(req, status, "application/json", oc_span_str(body));
}

static void health(struct oc_http *req, void *service) {
    (void)service;
    reply_json(req, 200, "{\"status\":\"ok\"}");
}

static void ready(struct oc_http *req, void *service) {
    struct oc_svc *s = (struct oc_svc *)service;
    struct oc_load_progress p;
    char body[256];

    switch (oc_svc_get_phase(s)) {
    case OC_SVC_READY:
        reply_json(req, 200, "{\"status\":\"ready\"}");
        return;
    case OC_SVC_DRAINING:
        reply_json(req, 503, "{\"status\":\"not_ready\",\"reason\":\"shutting down\"}");
        return;
    case OC_SVC_LOADING:
        break;
    }
    switch (atomic_load(&s->load)) {
    case OC_SVC_LOADED:
        reply_json(req, 503, "{\"status\":\"not_ready\",\"reason\":\"not marked ready\"}");
        return;
    case OC_SVC_LOAD_FAILED:
        reply_json(req, 503, "{\"status\":\"not_ready\",\"reason\":\"loading failed\"}");
        return;
    default:
        oc_objects_load_progress(s->cfg.objects, &p);
        (void)snprintf(body, sizeof body,
                       "{\"status\":\"not_ready\",\"reason\":\"loading\",\"bytes_done\":%" PRIu64
                       ",\"bytes_total\":%" PRIu64 ",\"records\":%" PRIu64 "}",
                       p.bytes_done, p.bytes_total, p.records);
        reply_json(req, 503, body);
    }
}

static void metrics(struct oc_http *req, void *service) {
    struct oc_buf page;

    oc_buf_init(&page, PAGE_BYTES);
    if (oc_metrics_write(((struct oc_svc *)service)->metrics, &page) == 0 &&
        oc_metrics_write_count_sites(&page, "ocache_unexpected_total") == 0) {
        oc_http_reply(req, 200, "text/plain; version=0.0.4; charset=utf-8", oc_buf_span(&page));
    } else {
        oc_http_reply(req, 500, "text/plain", OC_SPAN_LIT("out of memory\n"));
    }
    oc_buf_done(&page);
}

/* The shape that clients of the JSON API know for a path that is not there. */
void oc_svc_not_found(struct oc_http *req, void *service) {
    (void)service;
    reply_json(req, 404, "{\"code\":5,\"message\":\"Not Found\",\"details\":[]}");
}

static const struct oc_http_route routes[] = {
    {"/health", health}, {"/healthz", health},  {"/ready", ready},
    {"/readyz", ready},  {"/metrics", metrics},
};

const struct oc_http_route *oc_svc_routes(size_t *ret_count) {
    *ret_count = OC_ARRAY_LEN(routes);
    return routes;
}

void oc_svc_observe(void *service, const struct oc_method *method, int code, uint64_t duration_ns,
                    const char *peer) {
    struct oc_svc *s = (struct oc_svc *)service;
    int index = oc_svc_method_index(s, method);

    if (index >= 0) {
        oc_svc_count_call(s, (enum oc_svc_method)index, code, duration_ns);
    }
    if (s->cfg.on_call != NULL) {
        s->cfg.on_call(s->cfg.on_call_user, method->path, peer, code, duration_ns);
    }
}
