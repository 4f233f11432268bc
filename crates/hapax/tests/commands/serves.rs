//! Starting a broker: what it refuses, and the way to it over TLS.

use crate::broker::{Broker, Told, hapax};

#[test]
fn a_broker_does_not_listen_beyond_loopback_without_tokens_or_tls_unless_told() {
    let directory = tempfile::tempdir().unwrap();
    let serve = |arguments: &[&str]| {
        let mut command = hapax(directory.path());
        command.args(["serve", "--listen", "0.0.0.0:0", "--data", "data"]).args(arguments);
        Told::of(&command.output().unwrap())
    };
    let told = serve(&["--auth", "off", "--allow-no-tls"]);
    assert!(told.code == Some(2) && told.err.contains("no-auth"), "{told:?}");
    let told = serve(&[]);
    assert!(told.code == Some(2) && told.err.contains("no-tls"), "{told:?}");
    assert!(!directory.path().join("data").exists(), "nothing was made");
}

#[test]
fn a_second_broker_on_the_same_data_or_port_is_refused() {
    let broker = Broker::start();
    let serve = |arguments: &[&str]| {
        let mut command = hapax(&broker.path());
        command.args(["serve", "--auth", "off"]).args(arguments);
        Told::of(&command.output().unwrap())
    };
    let told = serve(&["--data", "data", "--listen", "127.0.0.1:0"]);
    assert!(told.code == Some(1) && told.err.contains("data"), "{told:?}");
    let port = broker.url.trim_start_matches("http://").to_owned();
    let told = serve(&["--data", "other", "--listen", &port]);
    assert!(told.code == Some(1) && told.err.contains(&port), "{told:?}");
    broker.ok(&["queue", "ls"]);
}

#[test]
fn commands_reach_a_broker_over_tls_if_they_trust_its_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let tls = ["--auth", "off", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let broker = Broker::start_in(directory, &tls);
    let port = broker.url.rsplit(':').next().unwrap().to_owned();
    let server = format!("https://localhost:{port}");
    let run = |arguments: &[&str]| {
        let mut command = hapax(&broker.path());
        command.args(["queue", "ls", "-o", "json", "--server", &server]).args(arguments);
        Told::of(&command.output().unwrap())
    };
    let told = run(&["--ca", "cert.pem"]);
    assert!(told.code == Some(0) && told.out.trim() == "[]", "{told:?}");
    let stranger = run(&[]);
    assert_ne!(stranger.code, Some(0), "nobody vouched for it: {stranger:?}");
    let missing = run(&["--ca", "nowhere.pem"]);
    assert!(missing.code == Some(2) && missing.err.contains("nowhere.pem"), "{missing:?}");
}
