//! The HTTP server: bounded in connections, sizes and times, and read-only.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query as Parameters, Request, State, rejection::QueryRejection};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use commonhold_command::output;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;

use crate::exposition::Format;
use crate::history::{self, Query};
use crate::listen::Listener;
use crate::metrics;
use crate::page;
use crate::picture::Published;
use crate::recent::Recent;
use crate::stall::Stall;

/// Bounds on clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The most connections at a time. Further clients wait until one ends.
    pub(crate) connections: usize,
    /// The most live streams, so that connections are left for metrics.
    pub(crate) streams: usize,
    /// The time for which a connection may wait for a request's head, also between requests.
    pub(crate) head: Duration,
    /// The time for which a write may wait for the client to read.
    pub(crate) write: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        // Prometheus scrapes every 15 s to 60 s, and opens a new connection if the old one is closed.
        let time = Duration::from_secs(30);
        Limits { connections: 64, streams: 32, head: time, write: time }
    }
}

/// The longest head of a request, in bytes, and the most headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// The pause after a failure to accept a client, such as for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The least time between two warnings that clients cannot be accepted.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// What requests share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    published: watch::Receiver<Arc<Published>>,
    recent: Arc<Mutex<Recent>>,
    /// Where the daemon's history may be; the first folder that exists is read.
    histories: Arc<[PathBuf]>,
    /// Whether requests must name this machine as a loopback address.
    check_host: bool,
    limits: Limits,
    streams: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(
        published: watch::Receiver<Arc<Published>>,
        recent: Arc<Mutex<Recent>>,
        histories: Vec<PathBuf>,
        check_host: bool,
        limits: Limits,
    ) -> Shared {
        let streams = Arc::new(Semaphore::new(limits.streams));
        Shared { published, recent, histories: histories.into(), check_host, limits, streams }
    }
}

/// Serves clients until the future is dropped.
pub(crate) async fn serve(listener: &Listener, shared: Shared) {
    let slots = Arc::new(Semaphore::new(shared.limits.connections));
    let limits = shared.limits;
    let router = router(shared);
    let mut warned_at: Option<Instant> = None;
    while let Ok(slot) = slots.clone().acquire_owned().await {
        let accepted = match listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(connection(stream, router.clone(), limits, slot));
            }),
            Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(connection(stream, router.clone(), limits, slot));
            }),
        };
        let Err(e) = accepted else { continue };
        if is_of_client(&e) {
            continue;
        }
        if warned_at.is_none_or(|at| at.elapsed() > WARN_AGAIN) {
            warned_at = Some(Instant::now());
            output::warn(&format!(
                "commonhold serve: cannot accept clients: {e}; trying again (LimitNOFILE= or `ulimit -n` sets \
                 how many files may be open)"
            ));
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Whether the client caused the failure, by closing its connection.
fn is_of_client(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

/// Serves one connection. Its errors are the client's, and are not reported.
async fn connection<S>(stream: S, router: Router, limits: Limits, _slot: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(Stall::new(stream, limits.write)), TowerToHyperService::new(router))
        .await;
}

fn router(shared: Shared) -> Router {
    let mut router = Router::new()
        .route("/metrics", get(metrics))
        .route("/api/live", get(live))
        .route("/api/history", get(history));
    for file in &page::FILES {
        router = router
            .route(file.path, get(|| async { ([(header::CONTENT_TYPE, file.content_type)], file.text) }));
    }
    router
        .fallback(|| async { (StatusCode::NOT_FOUND, "not found; see / and /metrics\n") })
        .layer(middleware::from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

/// Refuses requests under a host name that is not this machine's, and adds the headers of all responses.
///
/// A page elsewhere can have its own name resolve to 127.0.0.1, and so make a browser send requests here as
/// if the two had the same origin (DNS rebinding). Such requests have the other name in `Host`.
async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = if shared.check_host && !names_loopback(&request) {
        let why = "this server answers under the names localhost, 127.0.0.1 and [::1] alone; \
                   --any-address allows any name\n";
        (StatusCode::FORBIDDEN, why).into_response()
    } else {
        next.run(request).await
    };
    let headers = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a request names a loopback address, in its target and in `Host`, and at least in one of them.
fn names_loopback(request: &Request) -> bool {
    let target = request.uri().authority().map(Authority::as_str);
    let hosts = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut names = target.into_iter().chain(hosts).peekable();
    names.peek().is_some() && names.all(is_loopback)
}

/// Whether a host, which may have a port, is a name of the loopback interface.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    !host.contains('@')
        && (name.eq_ignore_ascii_case("localhost")
            || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()))
}

async fn metrics(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let format = Format::preferred(&headers);
    let published = shared.published.borrow().clone();
    let text = metrics::exposition(&published, format);
    ([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")], text).into_response()
}

/// The live stream: everything first, then differences. A client that reads slowly misses publications, and
/// then gets everything again: nothing is queued for it.
async fn live(State(shared): State<Shared>) -> Response {
    let Ok(slot) = shared.streams.clone().try_acquire_owned() else {
        let why = "too many pages follow this server; close one\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], why).into_response();
    };
    let mut seen = None;
    let events = WatchStream::new(shared.published.clone()).map(move |published| {
        // The slot belongs to the stream, and is free when the client is gone.
        let _ = &slot;
        let event = Event::default().data(published.json_after(seen));
        seen = Some(published.number);
        Ok::<_, Infallible>(event)
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(10))).into_response()
}

async fn history(State(shared): State<Shared>, query: Result<Parameters<Query>, QueryRejection>) -> Response {
    let checked = query
        .map_err(|e| format!("{}; write unit=PATH&from=SECONDS&to=SECONDS&step=SECONDS", e.body_text()))
        .and_then(|Parameters(query)| query.check().map(|()| query));
    let query = match checked {
        Ok(query) => query,
        Err(why) => return json(StatusCode::BAD_REQUEST, &serde_json::json!({ "error": why })),
    };
    let on_disk = {
        let (query, histories) = (query.clone(), shared.histories.clone());
        tokio::task::spawn_blocking(move || history::of_daemon(&histories, &query)).await.ok().flatten()
    };
    let series = on_disk.unwrap_or_else(|| {
        let recent = shared.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.series(query.unit.as_deref(), query.from * 1_000, query.to * 1_000, query.step * 1_000)
    });
    json(StatusCode::OK, &series)
}

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests;
