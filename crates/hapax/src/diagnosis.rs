//! Finds out why a broker cannot be reached if the error itself is unclear: certificates, `http`
//! instead of `https`, and servers that are not a broker.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::exit::Exit;
use crate::failure::Failure;

/// Timeout of each half of the probe.
const PATIENCE: Duration = Duration::from_secs(2);
/// The first byte of a TLS alert, with which a TLS server answers plain text.
const TLS_ALERT: u8 = 0x15;

/// Known causes, by a text in the error, and the hint for each.
const CAUSES: &[(&str, &str)] = &[
    (
        "CaUsedAsEndEntity",
        "the broker's certificate is marked as a CA certificate (CA:TRUE), which is the default \
         of openssl req -x509; create it with -addext basicConstraints=critical,CA:FALSE",
    ),
    ("NotValidForName", OTHER_NAME),
    ("certificate not valid for name", OTHER_NAME),
    ("Expired", "the broker's certificate has expired: renew it, a running broker reloads it"),
    ("NotValidYet", "the broker's certificate is not valid yet: compare the clocks"),
    (
        "CertificateRequired",
        "the broker requires a client certificate: --client-cert FILE --client-key FILE",
    ),
    ("InvalidContentType", "it does not speak TLS: use http:// in --server, or another port"),
    (
        "is halted",
        "nobody serves until an operator has decided: hapax cluster status shows the nodes, and \
         docs/cluster.md what to do (\"A node is halted\")",
    ),
];

const OTHER_NAME: &str = "the broker's certificate does not include the host of --server: use a \
                          name that it includes in --server, or create it with -addext \
                          subjectAltName=DNS:HOST,IP:ADDRESS";

/// The hint for a connection error, if its cause is known.
pub(crate) fn hint(what: &str, has_ca: bool) -> Option<&'static str> {
    if what.contains("UnknownIssuer") || what.contains("BadSignature") {
        return Some(match has_ca {
            true => "the certificate of --ca did not sign the broker's",
            false => {
                "give the CA certificate that signed the broker's with --ca FILE (or HAPAX_CA); \
                 for a self-signed certificate, give the certificate itself"
            }
        });
    }
    CAUSES.iter().find(|(cause, _)| what.contains(cause)).map(|(_, hint)| *hint)
}

/// The kind of server at an address.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A broker, which answers its health check.
    Broker,
    /// A server that accepts connections and does not answer.
    Silent,
    Tls,
    /// A web server that is not a broker, with its status line.
    Other(String),
}

/// Probes the server at this address, for an error that does not show the cause. `None` if there is
/// no server, and if it is unclear.
pub(crate) async fn look(server: &str, failure: &Failure) -> Option<Failure> {
    let uri: http::Uri = server.parse().ok()?;
    if uri.scheme_str() != Some("http") {
        return None;
    }
    let address = format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(80));
    let next = match probe(&address).await? {
        // Something between it and the command does not speak gRPC.
        Found::Broker if failure.what.contains("gRPC") => return None,
        Found::Broker => {
            "the broker is running, but did not answer this request: it may be overloaded; check \
             its log, and try again"
                .to_owned()
        }
        Found::Silent => format!(
            "the server at {address} accepts connections but does not answer: the broker may be \
             stalled, overloaded or still starting; check its log"
        ),
        Found::Tls => format!("it speaks TLS: use https://{address}, with --ca FILE"),
        Found::Other(status) => {
            let what = format!("the server at {server} is not a Hapax broker: {status}");
            let next = "check --server (or HAPAX_SERVER)";
            return Some(Failure::new(Exit::Unavailable, what).next(next));
        }
    };
    Some(Failure { next: Some(next), ..Failure::new(Exit::Unavailable, failure.what.clone()) })
}

async fn probe(address: &str) -> Option<Found> {
    let connect = tokio::time::timeout(PATIENCE, TcpStream::connect(address));
    let mut stream = connect.await.ok()?.ok()?;
    let mut answer = Vec::new();
    let asked = tokio::time::timeout(PATIENCE, ask(&mut stream, address, &mut answer)).await;
    match asked {
        Err(_) if answer.is_empty() => Some(Found::Silent),
        Ok(Err(_)) => None,
        _ => found(&answer),
    }
}

async fn ask(stream: &mut TcpStream, address: &str, answer: &mut Vec<u8>) -> std::io::Result<()> {
    let request = format!("GET /livez HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // What arrived before the connection closed is enough.
    let _ = stream.take(1_024).read_to_end(answer).await;
    Ok(())
}

/// Reads the answer of the probe. `None` if it is unclear.
fn found(answer: &[u8]) -> Option<Found> {
    if answer.first() == Some(&TLS_ALERT) {
        return Some(Found::Tls);
    }
    let text = String::from_utf8_lossy(answer);
    let (line, headers) = text.split_once("\r\n")?;
    let (version, status) = line.split_once(' ')?;
    if !version.starts_with("HTTP/") {
        return None;
    }
    let is_broker = headers.to_ascii_lowercase().contains("\nrequest-id:");
    Some(if is_broker { Found::Broker } else { Found::Other(crate::screen::clean(status)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_is_told_by_the_first_bytes() {
        assert_eq!(found(&[0x15, 3, 3, 0, 2, 2, 22]), Some(Found::Tls));
        let other = found(b"HTTP/1.0 404 File not found\r\nServer: SimpleHTTP\r\n\r\n");
        assert_eq!(other, Some(Found::Other("404 File not found".to_owned())));
        let broker = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nrequest-id: 1\r\n\r\nok\n";
        assert_eq!(found(broker), Some(Found::Broker));
        assert_eq!(found(b""), None);
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_not_an_absent_one() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let failure = Failure::new(Exit::Unavailable, "no answer within 30000 ms");
        let diagnosed = look(&server, &failure).await.unwrap();
        assert_eq!(diagnosed.what, failure.what);
        assert!(diagnosed.next.unwrap().contains("accepts connections but does not answer"));
        drop(listener);
        assert!(look(&server, &failure).await.is_none(), "nobody listens");
    }

    #[test]
    fn every_trouble_with_certificates_has_a_next_step() {
        let invalid = |cause: &str| format!("cannot reach it: invalid peer certificate: {cause}");
        let hint = |cause: &str, has_ca| hint(&invalid(cause), has_ca).unwrap_or_default();
        assert!(hint("Other(OtherError(CaUsedAsEndEntity))", true).contains("CA:FALSE"));
        assert!(hint("UnknownIssuer", false).contains("--ca FILE"));
        assert!(hint("UnknownIssuer", true).contains("did not sign"));
        for cause in ["NotValidForNameContext { .. }", "certificate not valid for name \"a\""] {
            assert!(hint(cause, true).contains("subjectAltName"), "{cause}");
        }
        assert_eq!(hint("Revoked", true), "");
    }
}
