//! Bad input on every route: a 4xx with a stable code and the one error body, and nothing
//! changed.

use reqwest::Method;
use serde_json::Value;

use crate::server::Server;

struct Case {
    method: &'static str,
    path: &'static str,
    body: Option<String>,
    status: u16,
    code: &'static str,
    /// A word that the message has: the field, as a rule.
    says: &'static str,
}

fn case(
    method: &'static str,
    path: &'static str,
    body: &str,
    status: u16,
    code: &'static str,
    says: &'static str,
) -> Case {
    let body = (!body.is_empty()).then(|| body.to_owned());
    Case { method, path, body, status, code, says }
}

const SOME_ID: &str = "/v1/jobs/01900000-0000-7000-8000-000000000000";
const SOME_RETRY: &str = "/v1/jobs/01900000-0000-7000-8000-000000000000/retry";
const SOME_LEASE: &str = "/v1/leases/01900000-0000-7000-8000-000000000000";

fn cases() -> Vec<Case> {
    [
        lease_cases(),
        listing_cases(),
        command_cases(),
        run_cases(),
        enrich_cases(),
        product_cases(),
        reserve_cases(),
        waitlist_cases(),
        wrong_methods(),
        large_bodies(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn invalid(method: &'static str, path: &'static str, body: &str, says: &'static str) -> Case {
    case(method, path, body, 400, "INVALID_REQUEST", says)
}

fn lease_cases() -> Vec<Case> {
    let lease = |body: &str, says| invalid("POST", "/v1/leases", body, says);
    let long = "x".repeat(513);
    let many: Vec<String> = (0..65).map(|n| format!("\"{n}\"")).collect();
    vec![
        lease("{", "EOF"),
        lease("nonsense", "expected"),
        lease("[]", "object"),
        lease("null", "expected"),
        lease("7", "expected"),
        lease("{} {}", "keys"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":1000} x"#, "behind"),
        lease("", "keys"),
        lease(r#"{"owner":"o","ttlMs":1000}"#, "keys"),
        lease(r#"{"keys":["a"],"ttlMs":1000}"#, "owner"),
        lease(r#"{"keys":["a"],"owner":"o"}"#, "ttlMs"),
        lease(r#"{"keys":"a","owner":"o","ttlMs":1000}"#, "keys"),
        lease(r#"{"keys":[1],"owner":"o","ttlMs":1000}"#, "keys[0]"),
        lease(r#"{"keys":[],"owner":"o","ttlMs":1000}"#, "keys"),
        lease(r#"{"keys":[""],"owner":"o","ttlMs":1000}"#, "keys"),
        lease(r#"{"keys":["a\u0000"],"owner":"o","ttlMs":1000}"#, "control"),
        lease(&format!(r#"{{"keys":["{long}"],"owner":"o","ttlMs":1000}}"#), "keys"),
        lease(&format!(r#"{{"keys":[{}],"owner":"o","ttlMs":1000}}"#, many.join(",")), "keys"),
        lease(r#"{"keys":["a"],"owner":"","ttlMs":1000}"#, "owner"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":0}"#, "ttlMs"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":-1}"#, "ttlMs"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":1.5}"#, "ttlMs"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":"1s"}"#, "ttlMs"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":86400001}"#, "ttlMs"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":99999999999999999999}"#, "ttlMs"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":1000,"waitMs":60001}"#, "waitMs"),
        lease(r#"{"keys":["a"],"owner":"o","ttlMs":1000,"extra":1}"#, "extra"),
        lease(r#"{"keys":["a"],"owner":"o","owner":"p","ttlMs":1000}"#, "owner"),
        invalid("PUT", SOME_LEASE, r#"{"ttlMs":1}"#, "ttlMs"),
        invalid("PUT", SOME_LEASE, r#"{"ttl":1000}"#, "ttl"),
        case("PUT", SOME_LEASE, "{}", 404, "LEASE_NOT_FOUND", "lease"),
        case("PUT", "/v1/leases/nonsense", "{}", 404, "LEASE_NOT_FOUND", "lease"),
        case("DELETE", SOME_LEASE, "", 404, "LEASE_NOT_FOUND", "lease"),
        case("DELETE", "/v1/leases/%00", "", 404, "LEASE_NOT_FOUND", "lease"),
    ]
}

fn listing_cases() -> Vec<Case> {
    let get = |path, says| invalid("GET", path, "", says);
    vec![
        get("/v1/leases?limit=0", "limit"),
        get("/v1/leases?limit=201", "limit"),
        get("/v1/leases?limit=-1", "limit"),
        get("/v1/leases?limit=many", "limit"),
        get("/v1/leases?colour=red", "colour"),
        get("/v1/jobs?state=lost", "state"),
        get("/v1/jobs?cursor=nonsense", "cursor"),
        get("/v1/jobs?limit=1&limit=2", "limit"),
        get("/v1/jobs?limit=201", "limit"),
        get("/v1/jobs?sort=up", "sort"),
        get("/v1/queues?limit=1000", "limit"),
        get("/v1/queues?x=1", "x"),
        get("/v1/dead-letters?limit=0", "limit"),
        get("/v1/dead-letters?state=dead", "state"),
        get("/v1/dead-letters?cursor=7", "cursor"),
        get("/v1/alerts?limit=0", "limit"),
        get("/v1/ws", "upgrade"),
        get("/v1/upstreams?limit=0", "limit"),
        get("/v1/upstreams?name=x", "name"),
        get("/v1/timeline", "subject"),
        get("/v1/timeline?subject=", "subject"),
        get("/v1/timeline?subject=nonsense", "subject"),
        get("/v1/timeline?subject=cat:1", "subject"),
        get("/v1/timeline?subject=job:", "subject"),
        get("/v1/timeline?subject=job:1&cursor=x", "cursor"),
        get("/v1/timeline?subject=job:1&limit=999", "limit"),
    ]
}

fn command_cases() -> Vec<Case> {
    let redrive = |body: &str, says| invalid("POST", "/v1/dead-letters/redrive", body, says);
    vec![
        case("GET", SOME_ID, "", 404, "NOT_FOUND", "job"),
        case("GET", "/v1/jobs/nonsense", "", 404, "NOT_FOUND", "nonsense"),
        invalid("POST", SOME_RETRY, r#"{"now":true}"#, "now"),
        case("POST", SOME_RETRY, "", 404, "NOT_FOUND", "job"),
        case("POST", "/v1/jobs/nonsense/retry", "", 404, "NOT_FOUND", "nonsense"),
        invalid("POST", "/v1/queues/q/pause", r#"{"until":"tomorrow"}"#, "until"),
        invalid("POST", "/v1/queues/q/pause", r#"{"until":"2001-01-01T00:00:00Z"}"#, "until"),
        invalid("POST", "/v1/queues/q/pause", r#"{"until":5}"#, "until"),
        invalid("POST", "/v1/queues/q/pause", r#"{"for":"1h"}"#, "for"),
        invalid("POST", "/v1/queues/q%01/pause", "{}", "name"),
        invalid("POST", "/v1/queues/q/resume", r#"{"now":true}"#, "now"),
        invalid("POST", "/v1/ws/tickets", r#"{"for":"me"}"#, "for"),
        invalid("POST", "/v1/ws/tickets", "[]", "object"),
        redrive(r#"{"limit":0}"#, "limit"),
        redrive(r#"{"limit":10001}"#, "limit"),
        redrive(r#"{"ratePerSecond":0}"#, "ratePerSecond"),
        redrive(r#"{"ids":["nonsense"]}"#, "ids[0]"),
        redrive(r#"{"dryRun":"yes"}"#, "dryRun"),
        redrive(r#"{"all":true}"#, "all"),
        case("GET", "/nowhere", "", 404, "NOT_FOUND", "route"),
        case("GET", "/v1", "", 404, "NOT_FOUND", "route"),
        case("GET", "/v1/jobs/a/b/c", "", 404, "NOT_FOUND", "route"),
        case("POST", "/v1/leases/", "{}", 404, "NOT_FOUND", "route"),
    ]
}

const SOME_RUN: &str = "/v1/runs/01900000-0000-7000-8000-000000000000";
const SOME_CANCEL: &str = "/v1/runs/01900000-0000-7000-8000-000000000000/cancel";
const SOME_RESUME: &str = "/v1/runs/01900000-0000-7000-8000-000000000000/resume";
const SOME_RECORDS: &str = "/v1/runs/01900000-0000-7000-8000-000000000000/records";
const SOME_PARTITION_RETRY: &str = "/v1/runs/01900000-0000-7000-8000-000000000000/partitions/p/retry";
const SOME_RESET: &str = "/v1/runs/01900000-0000-7000-8000-000000000000/partitions/p/reset";

fn run_cases() -> Vec<Case> {
    let start = |body: &str, says| invalid("POST", "/v1/runs", body, says);
    vec![
        start("", "source"),
        start("[]", "object"),
        start(r#"{"source":7}"#, "source"),
        start(r#"{"source":"s","mode":"half"}"#, "mode"),
        start(r#"{"source":"s","limit":-1}"#, "limit"),
        start(r#"{"source":"s","force":"yes"}"#, "force"),
        start(r#"{"source":"s","partitions":{}}"#, "partitions"),
        start(r#"{"source":"s","partitions":[]}"#, "partitions"),
        start(r#"{"source":"s","partitions":[{"partitionId":"p","minPrice":0}]}"#, "maxPrice"),
        start(r#"{"source":"s","partitions":[{"partitionId":"p","minPrice":0.5,"maxPrice":1}]}"#, "minPrice"),
        start(r#"{"source":"s","colour":"red"}"#, "colour"),
        case("POST", "/v1/runs", r#"{"source":"nobody"}"#, 404, "NOT_FOUND", "nobody"),
        invalid("GET", "/v1/runs?limit=0", "", "limit"),
        invalid("GET", "/v1/runs?cursor=x", "", "cursor"),
        invalid("GET", "/v1/runs?colour=red", "", "colour"),
        case("GET", SOME_RUN, "", 404, "NOT_FOUND", "run"),
        case("GET", "/v1/runs/nonsense", "", 404, "NOT_FOUND", "nonsense"),
        case("GET", SOME_RECORDS, "", 404, "NOT_FOUND", "run"),
        case("GET", "/v1/feeds/nobody/records", "", 404, "NOT_FOUND", "source"),
        case("POST", SOME_CANCEL, "", 404, "NOT_FOUND", "run"),
        invalid("POST", SOME_CANCEL, r#"{"now":true}"#, "now"),
        case("POST", SOME_RESUME, "", 404, "NOT_FOUND", "run"),
        case("POST", SOME_PARTITION_RETRY, "", 404, "NOT_FOUND", "run"),
        invalid("POST", SOME_RESET, "", "nextOffset"),
        invalid("POST", SOME_RESET, r#"{"nextOffset":-1}"#, "nextOffset"),
        invalid("POST", SOME_RESET, r#"{"nextOffset":100000001}"#, "nextOffset"),
        case("POST", SOME_RESET, r#"{"nextOffset":0}"#, 404, "NOT_FOUND", "run"),
    ]
}

const SOME_PLACE: &str = "/v1/enrich/wolt/places/somewhere";

fn enrich_cases() -> Vec<Case> {
    let ask = |body: &str, says| invalid("POST", "/v1/enrich", body, says);
    let warm = |body: &str, says| invalid("POST", "/v1/enrich/warm", body, says);
    let one = r#"{"placeId":"a","name":"b"}"#;
    let many = |count: usize| vec![one; count].join(",");
    let long = "x".repeat(513);
    vec![
        ask("", "results"),
        ask("[]", "object"),
        ask("{", "EOF"),
        ask(r#"{"results":{}}"#, "results"),
        ask(r#"{"results":[7]}"#, "results[0]"),
        ask(r#"{"results":[{"name":"b"}]}"#, "placeId"),
        ask(r#"{"results":[{"placeId":"a"}]}"#, "name"),
        ask(r#"{"results":[{"placeId":7,"name":"b"}]}"#, "placeId"),
        ask(r#"{"results":[{"placeId":"a","name":["b"]}]}"#, "name"),
        ask(r#"{"results":[{"placeId":"","name":"b"}]}"#, "placeId"),
        ask(&format!(r#"{{"results":[{{"placeId":"{long}","name":"b"}}]}}"#), "placeId"),
        ask(&format!(r#"{{"results":[{{"placeId":"a","name":"{long}"}}]}}"#), "name"),
        ask("{\"results\":[{\"placeId\":\"a\\u0000\",\"name\":\"b\"}]}", "placeId"),
        ask(r#"{"results":[{"placeId":"a","name":"b","address":7}]}"#, "address"),
        ask(r#"{"results":[{"placeId":"a","name":"b","providers":[]}]}"#, "providers"),
        ask(&format!(r#"{{"results":[{}]}}"#, many(201)), "200"),
        ask(r#"{"places":[{"id":"a"}]}"#, "displayName"),
        ask(r#"{"places":[{"displayName":{"text":"b"}}]}"#, "id"),
        ask(r#"{"places":[{"id":"a","displayName":"b"}]}"#, "displayName"),
        ask(r#"{"places":[],"results":[]}"#, "either"),
        ask(r#"{"results":[],"requestId":""}"#, "requestId"),
        ask(r#"{"results":[],"requestId":7}"#, "requestId"),
        ask(&format!(r#"{{"results":[],"requestId":"{long}"}}"#), "requestId"),
        ask(r#"{"results":[],"cityText":7}"#, "cityText"),
        ask(&format!(r#"{{"results":[],"cityText":"{long}"}}"#), "cityText"),
        ask("{\"results\":[],\"cityText\":\"a\\u0000\"}", "cityText"),
        ask(r#"{"results":[],"providers":"wolt"}"#, "providers"),
        ask(r#"{"results":[],"providers":["nobody"]}"#, "nobody"),
        ask(r#"{"results":[],"colour":"red"}"#, "colour"),
        warm("", "provider"),
        warm(r#"{"provider":"wolt"}"#, "places"),
        warm(r#"{"provider":"nobody","places":[]}"#, "nobody"),
        warm(r#"{"provider":"wolt","places":[]}"#, "enabled"),
        warm(r#"{"provider":"wolt","places":[{"name":"b"}]}"#, "placeId"),
        warm(r#"{"provider":"wolt","places":[],"colour":"red"}"#, "colour"),
        case("GET", "/v1/enrich/nobody", "", 404, "NOT_FOUND", "request"),
        case("GET", SOME_PLACE, "", 404, "NOT_FOUND", "somewhere"),
        case("GET", "/v1/enrich/nobody/places/a", "", 404, "NOT_FOUND", "nobody"),
        case("DELETE", SOME_PLACE, "", 404, "NOT_FOUND", "somewhere"),
        case("GET", "/v1/enrich/a%00", "", 404, "NOT_FOUND", "request"),
        case("GET", "/v1/enrich/wolt/places/a%00", "", 404, "NOT_FOUND", "place"),
        case("DELETE", "/v1/enrich/wolt/places/a%00", "", 404, "NOT_FOUND", "place"),
        case("DELETE", "/v1/enrich/nobody/places/a", "", 404, "NOT_FOUND", "nobody"),
    ]
}

fn product_cases() -> Vec<Case> {
    let search = |body: &str, says| invalid("POST", "/v1/products/search", body, says);
    let put = |body: &str, says| invalid("PUT", "/v1/products/cache", body, says);
    let long = "x".repeat(513);
    vec![
        search("", "appKey"),
        search("{", "EOF"),
        search(r#"{"appKey":"tours"}"#, "userId"),
        search(r#"{"userId":"u"}"#, "appKey"),
        search(r#"{"appKey":"tours","userId":""}"#, "userId"),
        search(r#"{"appKey":"tours","userId":7}"#, "userId"),
        search(&format!(r#"{{"appKey":"tours","userId":"{long}"}}"#), "userId"),
        search(&format!(r#"{{"appKey":"tours","userId":"u","hint":"{long}"}}"#), "hint"),
        search(r#"{"appKey":"tours","userId":"u","forceRefresh":"yes"}"#, "forceRefresh"),
        search(r#"{"appKey":"tours","userId":"u","token":[]}"#, "token"),
        search(r#"{"appKey":"tours","userId":"u","token":{"ttr":-1}}"#, "ttr"),
        search(
            r#"{"appKey":"tours","userId":"u","token":{"doNotCallPluginForProducts":1}}"#,
            "doNotCallPluginForProducts",
        ),
        search(r#"{"appKey":"tours","userId":"u","token":{"configuration":1}}"#, "configuration"),
        search(r#"{"appKey":"tours","userId":"u","payload":{"searchInput":1}}"#, "searchInput"),
        search(r#"{"appKey":"tours","userId":"u","payload":{"optionId":[1]}}"#, "optionId"),
        search(r#"{"appKey":"tours","userId":"u","colour":"red"}"#, "colour"),
        put("", "appKey"),
        put(r#"{"appKey":"tours","userId":"u"}"#, "products"),
        put(r#"{"appKey":"tours","userId":"u","products":{}}"#, "products"),
        put(r#"{"appKey":"tours","userId":"u","products":[7]}"#, "products"),
        put(r#"{"appKey":"tours","userId":"u","products":[{"options":7}]}"#, "products"),
        put(r#"{"appKey":"tours","userId":"u","products":[],"token":{}}"#, "token"),
        case(
            "POST",
            "/v1/products/search",
            r#"{"appKey":"nobody","userId":"u"}"#,
            404,
            "APP_NOT_FOUND",
            "nobody",
        ),
        case(
            "PUT",
            "/v1/products/cache",
            r#"{"appKey":"nobody","userId":"u","products":[]}"#,
            404,
            "APP_NOT_FOUND",
            "nobody",
        ),
    ]
}

const SOME_RESERVATION: &str = "/v1/reservations/01900000-0000-7000-8000-000000000000";
const SOME_CONFIRM: &str = "/v1/reservations/01900000-0000-7000-8000-000000000000/confirm";
const SOME_COLLECT: &str = "/v1/reservations/01900000-0000-7000-8000-000000000000/collect";
const SOME_CANCELLATION: &str = "/v1/reservations/01900000-0000-7000-8000-000000000000/cancel";
const SOME_EXTENSION: &str = "/v1/reservations/01900000-0000-7000-8000-000000000000/extend";
const SOME_ACCEPTANCE: &str = "/v1/reservations/01900000-0000-7000-8000-000000000000/accept";
const SOME_AUDIT: &str = "/v1/reservations/01900000-0000-7000-8000-000000000000/audit";

fn waitlist_cases() -> Vec<Case> {
    let not_found = |method, path, body: &str, code| case(method, path, body, 404, code, "");
    vec![
        not_found("POST", SOME_ACCEPTANCE, "{}", "RESERVATION_NOT_FOUND"),
        invalid("POST", SOME_ACCEPTANCE, r#"{"x":1}"#, "x"),
        not_found("POST", "/v1/inventory/nobody/waitlist", r#"{"userId":"u"}"#, "BOX_NOT_FOUND"),
        not_found("GET", "/v1/inventory/nobody/waitlist", "", "BOX_NOT_FOUND"),
        not_found("POST", "/v1/inventory/a%00/waitlist", r#"{"userId":"u"}"#, "BOX_NOT_FOUND"),
        invalid("POST", "/v1/inventory/nobody/waitlist", "", "userId"),
        invalid("POST", "/v1/inventory/nobody/waitlist", r#"{"userId":""}"#, "userId"),
        invalid("GET", "/v1/inventory/nobody/waitlist?limit=201", "", "limit"),
        not_found("DELETE", "/v1/waitlist/nonsense", "", "WAITLIST_ENTRY_NOT_FOUND"),
    ]
}

fn reserve_cases() -> Vec<Case> {
    let merchant = |body: &str, says| invalid("POST", "/v1/merchants", body, says);
    let stock = |more: &str, says| {
        let body = format!(r#"{{"boxTypeId":"t","quantity":1,"price":1,"currency":"EUR"{more}}}"#);
        invalid("POST", "/v1/inventory", &body, says)
    };
    let reserve = |more: &str, says| {
        let body = format!(r#"{{"userId":"u","boxInventoryId":"b"{more}}}"#);
        invalid("POST", "/v1/reservations", &body, says)
    };
    let not_found = |method, path, body: &str, code| case(method, path, body, 404, code, "");
    let window = r#","pickupStart":"2026-01-01T00:00:00Z","pickupEnd":"2026-01-01T01:00:00Z""#;
    let some_stock = format!(r#"{{"boxTypeId":"nobody","quantity":1,"price":1,"currency":"EUR"{window}}}"#);
    vec![
        merchant("", "name"),
        merchant(r#"{"name":""}"#, "name"),
        merchant(r#"{"name":"a","timezone":"Nowhere/Town"}"#, "timezone"),
        merchant(r#"{"name":"a","id":""}"#, "id"),
        merchant(r#"{"name":"a","colour":"red"}"#, "colour"),
        invalid("POST", "/v1/merchants/nobody/box-types", "", "name"),
        not_found("POST", "/v1/merchants/nobody/box-types", r#"{"name":"a"}"#, "MERCHANT_NOT_FOUND"),
        invalid("POST", "/v1/inventory", "", "boxTypeId"),
        stock("", "pickupStart"),
        stock(r#","pickupStart":"2026-01-01T00:00:00Z""#, "pickupEnd"),
        stock(r#","pickupStart":"2026-01-01T01:00:00Z","pickupEnd":"2026-01-01T01:00:00Z""#, "pickupEnd"),
        stock(r#","pickupStart":"soon","pickupEnd":"2026-01-01T01:00:00Z""#, "pickupStart"),
        stock(r#","pickupDate":"soon","pickupStartTime":"18:00","pickupEndTime":"19:00""#, "pickupDate"),
        stock(
            r#","pickupDate":"2026-01-01","pickupStartTime":"1x","pickupEndTime":"19:00""#,
            "pickupStartTime",
        ),
        stock(
            r#","pickupDate":"2026-01-01","pickupStartTime":"18:00","pickupEndTime":"18:00""#,
            "pickupEndTime",
        ),
        stock(&format!(r#"{window},"pricing":{{"kind":"rising"}}"#), "pricing"),
        stock(&format!(r#"{window},"colour":"red""#), "colour"),
        invalid("POST", "/v1/inventory", &some_stock.replace(r#""price":1"#, r#""price":-1"#), "price"),
        invalid("POST", "/v1/inventory", &some_stock.replace("EUR", "eur"), "currency"),
        invalid(
            "POST",
            "/v1/inventory",
            &some_stock.replace(r#""quantity":1"#, r#""quantity":-1"#),
            "quantity",
        ),
        invalid(
            "POST",
            "/v1/inventory",
            &some_stock.replace(r#""quantity":1"#, r#""quantity":99999999"#),
            "quantity",
        ),
        not_found("POST", "/v1/inventory", &some_stock, "BOX_TYPE_NOT_FOUND"),
        not_found("GET", "/v1/inventory/nobody", "", "BOX_NOT_FOUND"),
        not_found("GET", "/v1/inventory/nobody/audit", "", "BOX_NOT_FOUND"),
        not_found("PATCH", "/v1/inventory/nobody", r#"{"addQuantity":1}"#, "BOX_NOT_FOUND"),
        invalid("PATCH", "/v1/inventory/nobody", r#"{"status":"SOLD_OUT"}"#, "status"),
        invalid("PATCH", "/v1/inventory/nobody", r#"{"addQuantity":99999999999}"#, "addQuantity"),
        invalid("PATCH", "/v1/inventory/nobody", r#"{"addQuantity":"1"}"#, "addQuantity"),
        not_found("GET", "/v1/inventory/a%00", "", "BOX_NOT_FOUND"),
        not_found("GET", "/v1/inventory/a%00/audit", "", "BOX_NOT_FOUND"),
        not_found("PATCH", "/v1/inventory/a%00", "", "BOX_NOT_FOUND"),
        invalid("GET", "/v1/inventory?merchantId=a%00", "", "merchantId"),
        invalid("GET", "/v1/inventory?cursor=a%00", "", "cursor"),
        invalid("GET", "/v1/reservations?userId=a%00", "", "userId"),
        invalid("GET", "/v1/reservations?merchantId=a%00", "", "merchantId"),
        invalid("POST", "/v1/merchants/a%00/box-types", r#"{"name":"a"}"#, "merchantId"),
        invalid("GET", "/v1/inventory?status=GONE", "", "status"),
        invalid("GET", "/v1/inventory?limit=0", "", "limit"),
        invalid("GET", "/v1/inventory?colour=red", "", "colour"),
        invalid("POST", "/v1/reservations", "", "userId"),
        invalid("POST", "/v1/reservations", r#"{"userId":"u"}"#, "boxInventoryId"),
        reserve(r#","ttlMinutes":14"#, "ttlMinutes"),
        reserve(r#","ttlMinutes":30.1"#, "ttlMinutes"),
        reserve(r#","ttlMinutes":-1"#, "ttlMinutes"),
        reserve(r#","ttlMinutes":"20""#, "ttlMinutes"),
        reserve(r#","quantity":0"#, "quantity"),
        reserve(r#","quantity":10000001"#, "quantity"),
        reserve(r#","quantity":1.5"#, "quantity"),
        reserve(r#","maxPrice":-1"#, "maxPrice"),
        reserve(r#","colour":"red""#, "colour"),
        not_found("POST", "/v1/reservations", r#"{"userId":"u","boxInventoryId":"b"}"#, "BOX_NOT_FOUND"),
        not_found("GET", SOME_RESERVATION, "", "RESERVATION_NOT_FOUND"),
        not_found("GET", "/v1/reservations/nonsense", "", "RESERVATION_NOT_FOUND"),
        not_found("GET", SOME_AUDIT, "", "RESERVATION_NOT_FOUND"),
        not_found("POST", SOME_CONFIRM, "", "RESERVATION_NOT_FOUND"),
        not_found("POST", SOME_CANCELLATION, "", "RESERVATION_NOT_FOUND"),
        not_found("POST", SOME_EXTENSION, "", "RESERVATION_NOT_FOUND"),
        not_found("POST", SOME_COLLECT, r#"{"pickupCode":"7KQ2-M9XD"}"#, "RESERVATION_NOT_FOUND"),
        invalid("POST", SOME_COLLECT, "", "pickupCode"),
        invalid("POST", SOME_CONFIRM, r#"{"colour":"red"}"#, "colour"),
        invalid("POST", SOME_EXTENSION, r#"{"ttlMinutes":99}"#, "ttlMinutes"),
        invalid("GET", "/v1/reservations?status=GONE", "", "status"),
        invalid("GET", "/v1/reservations?cursor=nonsense", "", "cursor"),
        invalid("GET", "/v1/reservations?colour=red", "", "colour"),
    ]
}

fn wrong_methods() -> Vec<Case> {
    let wrong_method = [
        ("POST", "/healthz"),
        ("POST", "/readyz"),
        ("DELETE", "/metrics"),
        ("PATCH", "/v1/leases"),
        ("GET", SOME_LEASE),
        ("POST", "/v1/jobs"),
        ("DELETE", SOME_ID),
        ("GET", SOME_RETRY),
        ("PUT", "/v1/queues"),
        ("GET", "/v1/queues/q/pause"),
        ("DELETE", "/v1/queues/q/resume"),
        ("POST", "/v1/dead-letters"),
        ("GET", "/v1/dead-letters/redrive"),
        ("POST", "/v1/upstreams"),
        ("GET", "/v1/enrich"),
        ("GET", "/v1/enrich/warm"),
        ("GET", "/v1/products/search"),
        ("POST", "/v1/products/cache"),
        ("GET", "/v1/merchants"),
        ("PUT", "/v1/inventory"),
        ("DELETE", "/v1/reservations"),
        ("PUT", SOME_RESERVATION),
        ("GET", SOME_CONFIRM),
        ("PUT", "/v1/enrich/some-request"),
        ("POST", SOME_PLACE),
        ("DELETE", "/v1/runs"),
        ("PUT", SOME_RUN),
        ("GET", SOME_CANCEL),
        ("GET", SOME_RESUME),
        ("POST", SOME_RECORDS),
        ("GET", SOME_PARTITION_RETRY),
        ("PUT", SOME_RESET),
        ("POST", "/v1/feeds/nobody/records"),
        ("PUT", "/v1/timeline"),
        ("POST", "/v1/alerts"),
        ("POST", "/v1/ws"),
        ("GET", "/v1/ws/tickets"),
        ("POST", "/openapi.json"),
        ("POST", "/docs"),
        ("POST", "/docs/docs.js"),
        ("POST", "/docs/docs.css"),
        ("POST", "/"),
        ("PUT", "/enrich"),
        ("POST", "/products"),
        ("POST", "/boxes"),
        ("DELETE", "/runs"),
        ("POST", "/jobs"),
        ("POST", "/leases"),
        ("POST", "/upstreams"),
        ("POST", "/alerts"),
        ("POST", "/explain"),
        ("POST", "/client.js"),
        ("POST", "/v1/session"),
        ("GET", "/v1/login"),
        ("GET", "/v1/logout"),
        ("POST", "/dashboard/main.js"),
        ("DELETE", "/vendor/uPlot.min.css"),
    ];
    wrong_method.map(|(method, path)| case(method, path, "", 405, "METHOD_NOT_ALLOWED", "method")).into()
}

fn large_bodies() -> Vec<Case> {
    let padding = " ".repeat(1024 * 1024);
    let body = format!("{{{padding}}}");
    [
        "/v1/leases",
        "/v1/dead-letters/redrive",
        "/v1/queues/q/pause",
        "/v1/queues/q/resume",
        SOME_RETRY,
        "/v1/runs",
        "/v1/enrich",
        "/v1/enrich/warm",
        "/v1/products/search",
        "/v1/reservations",
        "/v1/inventory",
    ]
    .map(|path| case("POST", path, &body, 413, "BODY_TOO_LARGE", "1048576"))
    .into()
}

/// Everything that the store holds and a client can change.
fn contents(server: &Server) -> Vec<i64> {
    let conn = rusqlite::Connection::open(server.file()).expect("opens");
    let tables = [
        "jobs",
        "sent_keys",
        "queues",
        "leases",
        "entries",
        "events",
        "upstreams",
        "api_keys",
        "tickets",
        "feeds",
        "run_metadata",
        "merchants",
        "box_types",
        "inventory",
        "reservations",
        "idempotency_keys",
    ];
    let count = |table: &str| conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
    tables.map(|table| count(table).expect("counts")).to_vec()
}

#[tokio::test]
async fn bad_input_is_a_clear_refusal_and_changes_nothing() {
    let server = Server::start().await;
    server.post("/v1/leases", serde_json::json!({"keys": ["kept"], "owner": "o", "ttlMs": 60000})).await;
    let before = contents(&server);
    let cases = cases();
    println!("{} cases", cases.len());
    for case in cases {
        let method = Method::from_bytes(case.method.as_bytes()).expect("a method");
        let shown = format!("{} {} {:.80}", case.method, case.path, case.body.as_deref().unwrap_or_default());
        let answer = server.send(method, case.path, case.body.as_deref()).await;
        let status = answer.status().as_u16();
        let header = answer.headers()["x-request-id"].to_str().expect("text").to_owned();
        assert_eq!(answer.headers().contains_key("allow"), case.status == 405, "{shown}");
        let body: Value = answer.json().await.unwrap_or_else(|_| panic!("{shown}: the body is JSON"));
        assert_eq!((status, body["error"].as_str()), (case.status, Some(case.code)), "{shown}: {body}");
        assert!(body["message"].as_str().expect("a message").contains(case.says), "{shown}: {body}");
        assert_eq!(body["requestId"], header.as_str(), "{shown}");
        assert!(body.get("retryAfter").is_none(), "{shown}: trying again does not help");
    }
    assert_eq!(contents(&server), before, "nothing changed");
}

/// The routes of the table above are those of the description: a new route needs its cases.
#[tokio::test]
async fn every_route_has_bad_input() {
    let api = Server::start().await.get("/openapi.json").await;
    let routes = api["paths"].as_object().expect("paths");
    assert!(routes.len() > 15);
    let cases = cases();
    for route in routes.keys() {
        let pattern: Vec<&str> = route.split('/').collect();
        let fits = |path: &str| {
            let path = path.split('?').next().unwrap_or(path);
            let found: Vec<&str> = path.split('/').collect();
            found.len() == pattern.len()
                && found.iter().zip(&pattern).all(|(a, b)| a == b || b.starts_with('{'))
        };
        assert!(cases.iter().any(|case| fits(case.path)), "{route} has no bad input");
    }
}
