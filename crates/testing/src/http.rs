//! A minimal HTTP/1.1 client, over one connection at a time: tests see every byte, and a broken
//! connection is reported, not silently replaced.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Timeout for an answer; longer than the longest requested wait.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The largest answer.
const BODY_BYTES_MAX: usize = 64 << 20;

/// A request to send.
#[derive(Clone, Debug, Default)]
pub struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Self {
        Self { head: format!("{method} {path} HTTP/1.1\r\nhost: hapax\r\n"), body: Vec::new() }
    }

    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub fn post(path: &str, json: &Value) -> Self {
        Self::new("POST", path).json(json)
    }

    /// The send of one message.
    pub fn send(queue: &str, key: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", &format!("/v1/queues/{queue}/messages"))
            .header("idempotency-key", &format!("\"{key}\""))
            .body(body)
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub fn json(self, json: &Value) -> Self {
        self.header("content-type", "application/json").body(json.to_string())
    }

    fn bytes(&self, token: Option<&str>) -> Vec<u8> {
        let mut bytes = self.head.clone().into_bytes();
        if let Some(token) = token {
            bytes.extend_from_slice(format!("authorization: Bearer {token}\r\n").as_bytes());
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The JSON of an answer with this status.
    #[track_caller]
    pub fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// A problem with this status and this code.
    #[track_caller]
    pub fn fails(&self, status: u16, code: &str) -> Value {
        let problem = self.is(status);
        assert_eq!(problem["code"], code, "{problem}");
        problem
    }

    /// The code of a problem; empty if it is not one.
    pub fn code(&self) -> String {
        let problem: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A connection, made when it is first needed.
#[derive(Debug)]
pub struct Connection {
    address: SocketAddr,
    token: Option<String>,
    timeout: Duration,
    stream: Option<BufReader<TcpStream>>,
}

impl Connection {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, token: None, timeout: TIMEOUT, stream: None }
    }

    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Waits this long for an answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// One request and its answer. After an error it is unknown whether it was carried out, and the
    /// next request uses a new connection.
    pub fn try_ask(&mut self, request: &Request) -> io::Result<Response> {
        let asked = self.write(request).and_then(|()| self.read());
        if asked.is_err() {
            self.stream = None;
        }
        asked
    }

    /// Like `try_ask`, and panics on an error.
    #[track_caller]
    pub fn ask(&mut self, request: &Request) -> Response {
        match self.try_ask(request) {
            Ok(response) => response,
            Err(error) => panic!("{error}: {}", request.head),
        }
    }

    /// Sends a request and does not wait for its answer.
    pub fn write(&mut self, request: &Request) -> io::Result<()> {
        let bytes = request.bytes(self.token.as_deref());
        self.stream()?.get_mut().write_all(&bytes)
    }

    /// The next answer.
    pub fn read(&mut self) -> io::Result<Response> {
        let reader = self.stream()?;
        let first = line(reader)?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {first:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = line(reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        let length = response.header("content-length").map_or(Ok(0), str::parse);
        let length: usize = length.map_err(io::Error::other)?;
        if response.header("transfer-encoding").is_some() || length > BODY_BYTES_MAX {
            return Err(io::Error::other(format!("no answer of ours: {response:?}")));
        }
        response.body.resize(length, 0);
        reader.read_exact(&mut response.body)?;
        if response.header("connection").is_some_and(|it| it.eq_ignore_ascii_case("close")) {
            self.stream = None;
        }
        Ok(response)
    }

    fn stream(&mut self) -> io::Result<&mut BufReader<TcpStream>> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect_timeout(&self.address, self.timeout)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(self.timeout))?;
                stream.set_write_timeout(Some(self.timeout))?;
                BufReader::new(stream)
            }
        };
        Ok(self.stream.insert(stream))
    }
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
