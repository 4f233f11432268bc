//! Puts the settings together: defaults, then the file, then variables, then flags.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ArgMatches;

use super::entry::Entry;
use super::finding::{Finding, Mistakes, Rule};
use super::kind::Auth;
use super::origin::Origin;
use super::values::Values;
use super::{Settings, arguments, file};
use hapax_wire::nearest::closest;

/// The file that is read where none is named and this one is there.
const FILE: &str = "hapax.toml";
const PREFIX: &str = "HAPAX_";
/// A settings file beyond this is something else.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The command that the settings are for; some defaults depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    Serve,
    /// `hapax dev`: for one's own machine, without tokens.
    Dev,
}

/// Where settings come from.
#[derive(Clone, Debug)]
pub struct Sources<'a> {
    pub profile: Profile,
    /// What [`arguments`](super::arguments) parsed.
    pub arguments: Option<&'a ArgMatches>,
    /// Usually `std::env::vars_os()`.
    pub environment: Vec<(OsString, OsString)>,
    /// `HAPAX_…` variables that mean something to other parts of the program.
    pub other_variables: &'a [&'a str],
    /// Where `hapax.toml` is looked for: the working directory.
    pub directory: &'a Path,
}

impl<'a> Sources<'a> {
    /// The arguments, the environment of this process and its working directory.
    pub fn of_process(profile: Profile, arguments: &'a ArgMatches) -> Self {
        Self {
            profile,
            arguments: Some(arguments),
            environment: std::env::vars_os().collect(),
            other_variables: &[],
            directory: Path::new(""),
        }
    }
}

/// Settings, and what to tell about them.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub settings: Settings,
    /// Such as variables that nobody reads.
    pub warnings: Vec<String>,
}

pub(super) fn load(sources: &Sources<'_>) -> Result<Loaded, Mistakes> {
    let mut settings = Settings::default();
    let mut mistakes = Vec::new();
    if sources.profile == Profile::Dev {
        settings.auth = Auth::Off;
        settings.tell("auth", Origin::DefaultOf("dev"));
    }
    match find_file(sources) {
        Ok(Some((path, origin))) => {
            mistakes.extend(read_file(&path, &origin, sources.directory, &mut settings));
            settings.config = Some(path);
            settings.tell("config", origin);
        }
        Ok(None) => {}
        Err(mistake) => mistakes.push(mistake),
    }
    let warnings = read_environment(sources, &mut settings, &mut mistakes);
    read_arguments(sources, &mut settings, &mut mistakes);
    Mistakes::among(mistakes)?;
    Ok(Loaded { settings, warnings })
}

/// The file to read, and who named it.
fn find_file(sources: &Sources<'_>) -> Result<Option<(PathBuf, Origin)>, Finding> {
    let Some(entry) = Values::TABLE.iter().find(|entry| entry.name == "config") else {
        return Ok(None);
    };
    let flag = sources.arguments.and_then(|matches| arguments::given(matches, entry.name));
    let variable = sources.environment.iter().find(|(name, _)| *name == *entry.variable());
    let named = match (flag, variable) {
        (Some(flag), _) => Some((flag.to_owned(), Origin::Flag(entry.flag()))),
        (None, Some((_, value))) if !value.is_empty() => {
            let origin = Origin::Environment(entry.variable());
            let text = value.to_str().ok_or_else(|| not_text(entry, origin.clone()))?;
            Some((text.to_owned(), origin))
        }
        _ => None,
    };
    match named {
        Some((text, _)) if text == super::kind::NONE => Ok(None),
        Some((text, origin)) => Ok(Some((text.into(), origin))),
        None if sources.directory.join(FILE).is_file() => Ok(Some((FILE.into(), Origin::Default))),
        None => Ok(None),
    }
}

fn read_file(
    path: &Path,
    named_by: &Origin,
    directory: &Path,
    settings: &mut Settings,
) -> Vec<Finding> {
    let cannot = |why: String| {
        let (origin, field) = (named_by.clone(), "config".to_owned());
        let why = format!("{} cannot be read: {why}", path.display());
        let fix = "Name a file that can, or none".to_owned();
        vec![Finding { rule: Rule::Value, origin, field, why, fix }]
    };
    let full = directory.join(path);
    match std::fs::metadata(&full) {
        Ok(about) if about.len() > FILE_BYTES_MAX => {
            return cannot(format!("it has {} bytes, and settings are small", about.len()));
        }
        Ok(about) if about.is_dir() => return cannot("it is a directory".to_owned()),
        Ok(_) => {}
        Err(error) => return cannot(error.to_string()),
    }
    match std::fs::read_to_string(&full) {
        Ok(text) => file::read(&text, &path.display().to_string(), settings),
        Err(error) => cannot(error.to_string()),
    }
}

fn read_environment(
    sources: &Sources<'_>,
    settings: &mut Settings,
    mistakes: &mut Vec<Finding>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut variables: Vec<&(OsString, OsString)> = sources.environment.iter().collect();
    variables.sort();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let Some(entry) = Values::TABLE.iter().find(|entry| entry.variable() == name) else {
            warnings.extend(unknown_variables([name], sources.other_variables));
            continue;
        };
        // Found already; and an empty variable is how many tools spell an absent one.
        if entry.name == "config" || value.is_empty() {
            continue;
        }
        let origin = Origin::Environment(name.to_owned());
        match value.to_str() {
            Some(text) => set(entry, settings, text, origin, mistakes),
            None => mistakes.push(not_text(entry, origin)),
        }
    }
    warnings
}

fn read_arguments(sources: &Sources<'_>, settings: &mut Settings, mistakes: &mut Vec<Finding>) {
    let Some(matches) = sources.arguments else { return };
    for entry in Values::TABLE.iter().filter(|entry| entry.name != "config") {
        if let Some(text) = arguments::given(matches, entry.name) {
            set(entry, settings, text, Origin::Flag(entry.flag()), mistakes);
        }
    }
}

fn set(
    entry: &'static Entry<Values>,
    settings: &mut Settings,
    text: &str,
    origin: Origin,
    mistakes: &mut Vec<Finding>,
) {
    match (entry.set)(&mut settings.values, text) {
        Ok(()) => settings.tell(entry.name, origin),
        Err(why) => mistakes.push(wrong(entry, origin, why)),
    }
}

fn wrong(entry: &Entry<Values>, origin: Origin, why: String) -> Finding {
    let fix = format!("Allowed: {}", (entry.allowed)());
    Finding { rule: Rule::Value, origin, field: entry.name.to_owned(), why, fix }
}

fn not_text(entry: &Entry<Values>, origin: Origin) -> Finding {
    wrong(entry, origin, "its value is not UTF-8".to_owned())
}

/// A warning for each `HAPAX_…` variable that is neither a setting nor one of `others`.
pub fn unknown_variables<'a>(
    names: impl IntoIterator<Item = &'a str>,
    others: &[&str],
) -> Vec<String> {
    let settings: Vec<String> = Values::TABLE.iter().map(Entry::variable).collect();
    let known: Vec<&str> = settings.iter().map(String::as_str).chain(others.to_vec()).collect();
    let unknown =
        names.into_iter().filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    unknown
        .map(|name| {
            let meant = closest(name, known.iter().copied());
            let hint = meant.map_or_else(String::new, |meant| format!(": did you mean {meant}?"));
            format!("the variable {name} is not a setting and has no effect{hint}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Bytes, arguments};

    /// What the settings are with these flags, variables and file.
    struct Setup<'a> {
        flags: &'a [&'a str],
        variables: &'a [(&'a str, &'a str)],
        file: &'a str,
        profile: Profile,
    }

    const NOTHING: Setup<'_> =
        Setup { flags: &[], variables: &[], file: "", profile: Profile::Serve };

    impl Setup<'_> {
        fn load(&self) -> Result<Loaded, Mistakes> {
            let directory = tempfile::tempdir().unwrap();
            if !self.file.is_empty() {
                std::fs::write(directory.path().join(FILE), self.file).unwrap();
            }
            self.load_in(directory.path())
        }

        fn load_in(&self, directory: &Path) -> Result<Loaded, Mistakes> {
            let command = arguments(clap::Command::new("serve"));
            let matches = command.try_get_matches_from(["serve"].iter().chain(self.flags)).unwrap();
            let variables = self.variables.iter().map(|(name, value)| (name.into(), value.into()));
            Settings::load(&Sources {
                profile: self.profile,
                arguments: Some(&matches),
                environment: variables.collect(),
                other_variables: &["HAPAX_TOKEN"],
                directory,
            })
        }

        #[track_caller]
        fn mistakes(&self) -> Vec<String> {
            self.load().unwrap_err().0.iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn flags_go_before_variables_before_the_file_before_defaults() {
        let mut setup = Setup {
            flags: &["--listen", "127.0.0.1:1"],
            variables: &[("HAPAX_LISTEN", "127.0.0.1:2"), ("HAPAX_DATA", "/variable")],
            file: "# One line.\nlisten = \"127.0.0.1:3\"\ndata = \"/file\"\n\
                   memory_bytes = \"1GiB\"\n",
            ..NOTHING
        };
        let settings = setup.load().unwrap().settings;
        assert_eq!(settings.listen.port(), 1);
        assert_eq!(settings.data, Path::new("/variable"));
        assert_eq!(settings.memory_bytes, Bytes::mebi(1024));
        assert_eq!(settings.max_connections, Values::default().max_connections);
        let origin = |name: &str| settings.origin(name).to_string();
        assert_eq!(origin("listen"), "flag --listen");
        assert_eq!(origin("data"), "env HAPAX_DATA");
        assert_eq!(origin("memory_bytes"), "file hapax.toml:4");
        assert_eq!(origin("max_connections"), "default");
        setup.flags = &[];
        assert_eq!(setup.load().unwrap().settings.listen.port(), 2);
        setup.variables = &[];
        assert_eq!(setup.load().unwrap().settings.listen.port(), 3);
        setup.file = "";
        assert_eq!(setup.load().unwrap().settings.listen.port(), 4747);
    }

    #[test]
    fn a_flag_can_take_back_what_a_file_says() {
        let setup = Setup {
            flags: &["--tls-cert", "off", "--tls-key=off", "--allow-no-tls=false"],
            file: "tls_cert = \"a\"\ntls_key = \"b\"\nallow_no_tls = true\n",
            ..NOTHING
        };
        let settings = setup.load().unwrap().settings;
        assert_eq!((&settings.tls_cert, &settings.tls_key), (&None, &None));
        assert!(!settings.allow_no_tls);
        assert_eq!(settings.origin("tls_cert").to_string(), "flag --tls-cert");
    }

    #[test]
    fn the_file_may_be_named_and_must_then_be_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other.toml");
        std::fs::write(&path, "partitions = 3\n").unwrap();
        std::fs::write(directory.path().join(FILE), "partitions = 4\n").unwrap();
        let name = path.to_str().unwrap();
        let load = |setup: Setup<'_>| setup.load_in(directory.path());
        let settings = load(Setup { flags: &["--config", name], ..NOTHING }).unwrap().settings;
        assert_eq!(settings.partitions, 3);
        assert_eq!(settings.origin("partitions").to_string(), format!("file {name}:1"));
        assert_eq!(settings.origin("config").to_string(), "flag --config");
        let variables = [("HAPAX_CONFIG", "other.toml")];
        let named = load(Setup { variables: &variables, ..NOTHING }).unwrap().settings;
        assert_eq!(named.partitions, 3);
        let none = load(Setup { flags: &["--config", "off"], ..NOTHING }).unwrap().settings;
        assert_eq!(none.partitions, 1);
        let found = load(NOTHING).unwrap().settings;
        assert_eq!((found.partitions, found.config.clone()), (4, Some(FILE.into())));
        let absent = load(Setup { flags: &["--config", "absent.toml"], ..NOTHING });
        let why = absent.unwrap_err().to_string();
        assert!(why.starts_with("flag --config: error: config: absent.toml cannot be"), "{why}");
        let folder = load(Setup { flags: &["--config", "."], ..NOTHING }).unwrap_err();
        assert!(folder.to_string().contains("it is a directory"), "{folder}");
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once_with_its_place() {
        let setup = Setup {
            flags: &["--memory-bytes", "lots"],
            variables: &[("HAPAX_PARTITIONS", "0")],
            file: "lisen = \"127.0.0.1:1\"\nlog = \"loud\"\n",
            ..NOTHING
        };
        let mistakes = setup.mistakes();
        assert_eq!(mistakes.len(), 4, "{mistakes:#?}");
        assert!(mistakes[0].starts_with("hapax.toml:1: error: lisen: there is no such setting"));
        assert!(mistakes[0].contains("Did you mean listen?"));
        assert!(mistakes[1].starts_with("hapax.toml:2: error: log: \"loud\" is no level"));
        assert!(
            mistakes[2].starts_with("env HAPAX_PARTITIONS: error: partitions: 0 is not within")
        );
        assert!(mistakes[2].contains("Allowed: a whole number, from 1 to 4096"));
        assert!(
            mistakes[3].starts_with("flag --memory-bytes: error: memory_bytes: \"lots\" is no")
        );
    }

    #[test]
    fn an_unknown_variable_is_warned_about_and_an_empty_one_is_absent() {
        let variables = [
            ("HAPAX_LISTN", "127.0.0.1:1"),
            ("HAPAX_COLOUR", "red"),
            ("HAPAX_TOKEN", "secret"),
            ("HAPAX_DATA", ""),
            ("PATH", "/bin"),
        ];
        let loaded = Setup { variables: &variables, ..NOTHING }.load().unwrap();
        let [colour, listen] = loaded.warnings.as_slice() else { panic!("{:?}", loaded.warnings) };
        assert!(colour.contains("HAPAX_COLOUR is not a setting and has no effect"), "{colour}");
        assert!(listen.ends_with("did you mean HAPAX_LISTEN?"), "{listen}");
        assert_eq!(loaded.settings.origin("data"), Origin::Default);
        assert!(!loaded.warnings.join(" ").contains("secret"));
    }

    #[test]
    fn dev_needs_no_tokens_unless_told_otherwise() {
        let dev = Setup { profile: Profile::Dev, ..NOTHING }.load().unwrap().settings;
        assert_eq!(
            (dev.auth, dev.origin("auth").to_string()),
            (Auth::Off, "default of dev".into())
        );
        let told = Setup { profile: Profile::Dev, file: "auth = \"tokens\"", ..NOTHING };
        assert_eq!(told.load().unwrap().settings.auth, Auth::Tokens);
        assert_eq!(NOTHING.load().unwrap().settings.auth, Auth::Tokens);
    }

    #[test]
    fn a_broker_refuses_to_be_reachable_without_tokens_or_tls() {
        let check = |flags: &[&str]| {
            Setup { flags, ..NOTHING }.load().unwrap().settings.check().map_err(|mistakes| {
                mistakes.0.iter().map(|finding| finding.rule.name()).collect::<Vec<_>>()
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
        let settings = Setup { flags: &flags, ..NOTHING }.load().unwrap().settings;
        let why = settings.check().unwrap_err().to_string();
        for part in ["flag --listen: error", "hapax token create", "tls_cert", "allow_no_auth"] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
