//! The exit codes of every command, in one table. Scripts rely on them: a number never changes its
//! meaning.

use std::process::ExitCode;

use hapax_wire::Code;

macro_rules! exits {
    ($($name:ident = $number:literal $meaning:literal,)+) => {
        /// The exit codes of commands.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Exit { $($name = $number,)+ }

        impl Exit {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            pub(crate) fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)+ }
            }
        }

        /// The table as `hapax help` shows it.
        pub(crate) const HELP: &str = concat!(
            "Exit codes:\n",
            $("  ", stringify!($number), "\t", $meaning, "\n",)+
        );
    };
}

exits! {
    Ok = 0 "success; a duplicate that got the first answer counts as success too",
    Failure = 1 "failure, or a check found a problem",
    Usage = 2 "the command or the request is invalid, or the message is in a state that does not \
               allow it; repeating it does not help",
    Missing = 3 "the queue, key, redrive or token does not exist",
    Conflict = 4 "conflict: key, id or name in use, operation too old, lease lost, or not dead \
                  (dead discard)",
    Refused = 5 "the token is missing or invalid, or lacks the permission",
    Unavailable = 6 "the broker cannot be reached or cannot answer now",
    Ended = 7 "the message is dead, parked or discarded, so there is no result",
    WaitOver = 8 "the wait timed out before there was an outcome or a message",
    RetryLater = 75 "temporarily refused (quota, rate limit, disk full): try again later",
}

impl Exit {
    /// The exit code for an error code of the broker.
    pub(crate) fn of(code: Code) -> Self {
        match code {
            Code::Invalid
            | Code::MissingKey
            | Code::MalformedKey
            | Code::InvalidConfig
            | Code::UndatedKey
            | Code::TooLarge => Self::Usage,
            Code::NoSuchQueue | Code::NoSuchKey => Self::Missing,
            Code::Conflict | Code::InFlight | Code::TooOld | Code::LeaseLost => Self::Conflict,
            Code::Unauthorized | Code::Forbidden => Self::Refused,
            Code::OverQuota | Code::RateLimited | Code::StoreFull => Self::RetryLater,
            Code::Unavailable => Self::Unavailable,
            Code::Internal => Self::Failure,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_line_in_the_help() {
        for exit in Exit::ALL {
            let line = format!("  {}\t{}\n", *exit as u8, exit.meaning());
            assert!(HELP.contains(&line), "{exit:?}");
        }
    }
}
