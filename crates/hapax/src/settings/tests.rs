//! Precedence, origins, and what is refused.

use clap::{Args, Command, FromArgMatches};

use super::*;

/// The settings with these flags and this file.
struct Setup<'a> {
    flags: &'a [&'a str],
    file: &'a str,
    profile: Profile,
}

const NOTHING: Setup<'_> = Setup { flags: &[], file: "", profile: Profile::Serve };

impl Setup<'_> {
    fn load(&self) -> Result<Settings, Mistakes> {
        let directory = tempfile::tempdir().unwrap();
        if !self.file.is_empty() {
            std::fs::write(directory.path().join(FILE), self.file).unwrap();
        }
        self.load_in(directory.path())
    }

    fn load_in(&self, directory: &Path) -> Result<Settings, Mistakes> {
        // Without the variables of whoever runs the test.
        let command = Flags::augment_args(Command::new("serve"))
            .mut_args(|argument| argument.env(clap::builder::Resettable::Reset));
        let matches = command.try_get_matches_from(["serve"].iter().chain(self.flags)).unwrap();
        Settings::load(&Flags::from_arg_matches(&matches).unwrap(), self.profile, directory)
    }
}

#[test]
fn flags_go_before_the_file_before_defaults() {
    let mut setup = Setup {
        flags: &["--listen", "127.0.0.1:1"],
        file: "# One line.\nlisten = \"127.0.0.1:3\"\ndata = \"/file\"\nmemory_bytes = \"1GiB\"\n",
        ..NOTHING
    };
    let settings = setup.load().unwrap();
    let options = settings.options();
    assert_eq!((options.listen.port(), options.memory_bytes), (1, 1 << 30));
    assert_eq!(options.data, Path::new("/file"));
    assert_eq!(options.max_connections, Options::default().max_connections);
    let origin = |name: &str| settings.origin(name).to_string();
    assert_eq!(origin("listen"), "flag --listen");
    assert_eq!(origin("memory_bytes"), "file hapax.toml:4");
    assert_eq!(origin("max_connections"), "default");
    setup.flags = &[];
    assert_eq!(setup.load().unwrap().options().listen.port(), 3);
    setup.file = "";
    assert_eq!(setup.load().unwrap().options(), Options::default());
}

#[test]
fn a_flag_can_take_back_what_a_file_says() {
    let setup = Setup {
        flags: &["--tls-cert", "off", "--tls-key=off", "--allow-no-tls=false"],
        file: "tls_cert = \"a\"\ntls_key = \"b\"\nallow_no_tls = true\n",
        ..NOTHING
    };
    let settings = setup.load().unwrap();
    let options = settings.options();
    assert_eq!((&options.tls_cert, &options.tls_key), (&None, &None));
    assert!(!options.allow_no_tls);
    assert_eq!(settings.origin("tls_cert").to_string(), "flag --tls-cert");
}

#[test]
fn the_file_may_be_named_and_must_then_be_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.toml");
    std::fs::write(&path, "partitions = 3\n").unwrap();
    std::fs::write(directory.path().join(FILE), "partitions = 4\n").unwrap();
    let name = path.to_str().unwrap();
    let load = |flags: &[&str]| Setup { flags, ..NOTHING }.load_in(directory.path());
    let settings = load(&["--config", name]).unwrap();
    assert_eq!(settings.values.partitions, 3);
    assert_eq!(settings.origin("partitions").to_string(), format!("file {name}:1"));
    assert_eq!(settings.origin("config").to_string(), "flag --config");
    assert_eq!(load(&["--config", "other.toml"]).unwrap().values.partitions, 3);
    assert_eq!(load(&["--config", "off"]).unwrap().values.partitions, 1);
    let found = load(&[]).unwrap().values;
    assert_eq!((found.partitions, found.config), (4, Some(OrOff(Some(FILE.into())))));
    let why = load(&["--config", "absent.toml"]).unwrap_err().to_string();
    assert!(why.starts_with("flag --config: config: absent.toml cannot be read: "), "{why}");
    let folder = load(&["--config", "."]).unwrap_err();
    assert!(folder.to_string().contains("it is a directory"), "{folder}");
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_place() {
    let setup = Setup {
        flags: &["--partitions", "0", "--log", "debug"],
        file: "lisen = \"127.0.0.1:1\"\nlog = \"loud\"\nmax_connections = 0\n",
        ..NOTHING
    };
    let wrong: Vec<String> = setup.load().unwrap_err().0.iter().map(ToString::to_string).collect();
    let expected = [
        "hapax.toml:1: error: lisen: there is no such setting. Did you mean listen? [",
        "hapax.toml:2: error: log: \"loud\" is not a level",
        "hapax.toml:3: error: max_connections: 0 is not between 1 and 1000000. Allowed: a whole",
        "flag --partitions: error: partitions: 0 is not between 1 and 4096. Allowed: a whole \
         number, from 1 to 4096 [value]",
    ];
    assert_eq!(wrong.len(), expected.len(), "{wrong:#?}");
    for (wrong, expected) in wrong.iter().zip(expected) {
        assert!(wrong.starts_with(expected), "{wrong}");
    }
}

#[test]
fn a_certificate_without_its_key_is_told_along_with_the_rest() {
    let setup = Setup { file: "lisen = 1\ntls_cert = \"cert.pem\"\n", ..NOTHING };
    let wrong = setup.load().unwrap_err().to_string();
    assert!(wrong.contains("lisen: there is no such setting"), "{wrong}");
    assert!(wrong.contains("tls-incomplete"), "{wrong}");
    // Its default says nothing about the certificate.
    let setup = Setup { file: "tls_cert = \"cert.pem\"\ntls_key = 5\n", ..NOTHING };
    let wrong = setup.load().unwrap_err();
    assert_eq!(wrong.0.len(), 1, "{wrong}");
}

#[test]
fn dev_needs_no_tokens_unless_told_otherwise() {
    let dev = Setup { profile: Profile::Dev, ..NOTHING };
    let settings = dev.load().unwrap();
    assert_eq!(settings.values.auth, Auth::Off);
    assert_eq!(settings.origin("auth").to_string(), "default of dev");
    let setup = Setup { file: "auth = \"tokens\"", ..dev };
    assert_eq!(setup.load().unwrap().values.auth, Auth::Tokens);
    let setup = Setup { flags: &["--auth", "tokens"], profile: Profile::Dev, ..NOTHING };
    assert_eq!(setup.load().unwrap().values.auth, Auth::Tokens);
    assert_eq!(NOTHING.load().unwrap().values.auth, Auth::Tokens);
}

#[test]
fn a_broker_refuses_to_be_reachable_without_tokens_or_tls() {
    let check = |flags: &[&str]| {
        Setup { flags, ..NOTHING }.load().unwrap().check().map_err(|mistakes| {
            mistakes.0.iter().map(|found| found.finding.rule.name()).collect::<Vec<_>>()
        })
    };
    let open = ["--listen", "0.0.0.0:4747"];
    let with = |more: &[&str]| check(&[&open, more].concat());
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&["--auth", "off"]), Ok(()), "loopback is for oneself");
    assert_eq!(with(&[]), Err(vec!["no-tls"]));
    assert_eq!(with(&["--auth", "off"]), Err(vec!["no-auth", "no-tls"]));
    assert_eq!(with(&["--auth", "off", "--allow-no-tls"]), Err(vec!["no-auth"]));
    assert_eq!(with(&["--auth", "off", "--allow-no-auth"]), Err(vec!["no-tls"]));
    assert_eq!(with(&["--allow-no-tls"]), Ok(()));
    let tls = ["--tls-cert", "a", "--tls-key", "b"];
    assert_eq!(with(&tls), Ok(()));
    assert_eq!(with(&["--tls-cert", "a"]), Err(vec!["tls-incomplete"]));
    assert_eq!(with(&[&tls[..], &["--auth", "off", "--allow-no-auth"]].concat()), Ok(()));
}

#[test]
fn a_refusal_says_what_can_be_done() {
    let flags = ["--listen", "0.0.0.0:4747", "--auth", "off"];
    let settings = Setup { flags: &flags, ..NOTHING }.load().unwrap();
    let why = settings.check().unwrap_err().to_string();
    for part in ["flag --listen: listen: ", "hapax token create", "tls_cert", "allow_no_auth"] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn a_finding_says_where_and_what_and_why_and_what_to_do() {
    let origin = Origin::File { file: "hapax.toml".into(), line: 3 };
    let (field, why, fix) = ("data".to_owned(), "it is odd".to_owned(), "Move it".to_owned());
    let found = Located { origin, finding: Finding { rule: Rule::TemporaryData, field, why, fix } };
    let line = "hapax.toml:3: warning: data: it is odd. Move it [temporary-data]";
    assert_eq!(found.to_string(), line);
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["severity"], "warning");
    assert_eq!(json["rule"], "temporary-data");
    assert_eq!(json["line"], 3);
    assert_eq!(json["origin"], "file hapax.toml:3");
    assert_eq!(json["fix"], "Move it");
}
