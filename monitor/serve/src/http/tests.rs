use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use commonhold_protocol::monitor::MonitorReply;
use tokio::sync::watch::Sender;

use crate::picture::sample;

use super::*;

/// A server on a free port of the loopback interface, on a thread of its own.
struct Server {
    address: SocketAddr,
    published: Sender<Arc<Published>>,
}

impl Server {
    fn start(limits: Limits) -> Server {
        let first = Published::default().with_picture(Arc::new(sample()), 1_790_000_000_500);
        let (published, receiver) = watch::channel(Arc::new(first));
        let mut recent = Recent::default();
        recent.add(&sample());
        let shared = Shared::new(receiver, Arc::new(Mutex::new(recent)), Vec::new(), true, limits);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                socket.set_nonblocking(true).unwrap();
                let listener = Listener::Tcp(tokio::net::TcpListener::from_std(socket).unwrap());
                serve(&listener, shared).await;
            });
        });
        Server { address, published }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends bytes; returns all that comes until the server closes the connection.
    fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn request(&self, line: &str, headers: &str) -> String {
        self.exchange(&format!("{line} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
    }

    fn get(&self, path: &str) -> String {
        self.request(&format!("GET {path}"), "Host: localhost:1\r\n")
    }

    fn publish(&self, next: impl FnOnce(&Published) -> Published) {
        let now = self.published.borrow().clone();
        self.published.send(Arc::new(next(&now))).unwrap();
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn metrics_and_page_are_served_with_their_headers() {
    let server = Server::start(Limits::default());
    let answer = server.get("/metrics");
    assert_eq!(status(&answer), "200");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    assert!(answer.contains("\ncommonhold_up 1\n"));
    let wanted = "Host: 127.0.0.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n";
    let answer = server.request("GET /metrics", wanted);
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"), "{answer}");
    assert!(answer.ends_with("# EOF\n"));
    for file in &page::FILES {
        let answer = server.get(file.path);
        assert_eq!(status(&answer), "200", "{}", file.path);
        assert!(answer.contains(file.content_type) && answer.ends_with(file.text), "{}", file.path);
        assert!(answer.contains("content-security-policy: default-src 'self'"), "{answer}");
        assert!(answer.contains("x-content-type-options: nosniff"));
        assert!(!answer.to_ascii_lowercase().contains("access-control"));
    }
    let head = server.request("HEAD /metrics", "Host: [::1]:9477\r\n");
    assert_eq!(status(&head), "200");
    assert!(head.ends_with("\r\n\r\n"));
}

#[test]
fn other_methods_paths_and_hosts_are_refused() {
    let server = Server::start(Limits::default());
    assert_eq!(status(&server.get("/etc/passwd")), "404");
    assert_eq!(status(&server.get("/../Cargo.toml")), "404");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let answer = server.request(&format!("{method} /metrics"), "Host: localhost\r\n");
        assert_eq!(status(&answer), "405", "{method}");
        assert!(answer.contains("allow: GET,HEAD"), "{answer}");
    }
    for host in [
        "Host: evil.example:9477\r\n",
        "",
        "Host: \r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: a@localhost\r\n",
    ] {
        let answer = server.request("GET /metrics", host);
        assert_eq!(status(&answer), "403", "{host}");
        assert!(!answer.contains("commonhold_up"));
    }
    let absolute = server.request("GET http://evil.example/metrics", "Host: localhost\r\n");
    assert_eq!(status(&absolute), "403");
    for host in ["LOCALHOST", "127.0.0.1:9477", "127.1.2.3", "[::1]"] {
        assert_eq!(status(&server.request("GET /", &format!("Host: {host}\r\n"))), "200", "{host}");
    }
}

#[test]
fn large_and_malformed_requests_are_refused() {
    let server = Server::start(Limits::default());
    let long = format!("Host: localhost\r\nX: {}\r\n", "x".repeat(HEAD_BYTES_MAX));
    assert_eq!(status(&server.request("GET /", &long)), "431");
    let many = format!("Host: localhost\r\n{}", "X: y\r\n".repeat(HEADERS_MAX + 1));
    assert_eq!(status(&server.request("GET /", &many)), "431");
    assert_eq!(status(&server.exchange("\u{1}\u{2}\r\n\r\n")), "400");
    // The server still answers.
    assert_eq!(status(&server.get("/")), "200");
}

#[test]
fn history_answers_and_refuses() {
    let server = Server::start(Limits::default());
    let wall = sample().wall_ms / 1_000;
    let unit = sample().units[0].unit.replace('/', "%2F");
    let answer = server.get(&format!("/api/history?unit={unit}&from={}&to={}", wall - 60, wall + 1));
    assert_eq!(status(&answer), "200");
    let body: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["t"].as_array().unwrap().len(), 1);
    assert!(body["cpu_entitled"][0].is_number());
    let answer = server.get(&format!("/api/history?from={}&to={}", wall - 60, wall + 1));
    let body: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["cpu_entitled"][0], 8.0);
    for wrong in ["", "?unit=a&from=1&to=x", "?unit=a&from=2&to=1", "?unit=a&from=0&to=99999&step=1"] {
        let answer = server.get(&format!("/api/history{wrong}"));
        assert_eq!(status(&answer), "400", "{wrong}");
        assert!(answer.contains("\"error\":\""), "{answer}");
    }
}

/// Reads the data of the next event.
fn next_event(stream: &mut TcpStream) -> serde_json::Value {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\n\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let text = String::from_utf8(bytes).unwrap();
    let data = text.split("data: ").nth(1).unwrap_or_else(|| panic!("{text}"));
    serde_json::from_str(data.split('\n').next().unwrap()).unwrap()
}

fn follow(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

#[test]
fn a_live_stream_begins_with_everything() {
    let server = Server::start(Limits::default());
    let mut stream = follow(&server);
    let first = next_event(&mut stream);
    assert_eq!(first["whole"], true);
    assert_eq!(first["units"].as_array().unwrap().len(), sample().units.len());
    let mut changed: MonitorReply = sample();
    changed.units[0].processes += 1;
    server.publish(|now| now.with_picture(Arc::new(changed), 0));
    let second = next_event(&mut stream);
    assert_eq!(second["whole"], false);
    assert_eq!(second["units"].as_array().unwrap().len(), 1);
    server.publish(|now| now.without_daemon("gone".to_owned()));
    assert_eq!(next_event(&mut stream)["lost"], "gone");
    assert!(server.get("/metrics").ends_with("\ncommonhold_up 0\n"));
}

#[test]
fn clients_that_do_nothing_are_closed_and_others_are_served() {
    let head = Duration::from_millis(200);
    let server = Server::start(Limits { connections: 2, streams: 1, head, write: head });
    // They take all connections, send nothing, and are closed.
    let mut idle = [server.connect(), server.connect()];
    assert_eq!(status(&server.get("/")), "200");
    for stream in &mut idle {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let mut stream = follow(&server);
    next_event(&mut stream);
    assert_eq!(status(&server.get("/api/live")), "503");
    assert_eq!(status(&server.get("/metrics")), "200");
    // A page that does not read any more loses its stream.
    let mut large = sample();
    large.units[0].gangs = "x".repeat(32 << 20);
    server.publish(|now| now.with_picture(Arc::new(large), 0));
    let served = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let mut again = follow(&server);
        let mut start = [0; 12];
        again.read_exact(&mut start).is_ok() && start.ends_with(b"200")
    });
    assert!(served);
}
