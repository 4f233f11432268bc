//! The exit codes of every command, in one table. Scripts rely on them: a number never changes its
//! meaning.

use std::process::ExitCode;

use hapax_wire::Code;

macro_rules! exits {
    ($($name:ident = $number:literal $meaning:literal,)+) => {
        /// How a command ended, for scripts to tell apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Exit { $($name = $number,)+ }

        impl Exit {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            #[cfg(test)]
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
    Ok = 0 "it worked; a duplicate that got the first answer is a success too",
    Failure = 1 "it did not work, or something that was checked is not in order",
    Usage = 2 "the command or the request is wrong; the same one fails again",
    Missing = 3 "there is no such queue, key, redrive or token",
    Conflict = 4 "the key belongs to something else, or the lease to somebody else",
    Refused = 5 "no valid token, or one that does not allow this",
    Unavailable = 6 "the broker cannot be reached, or cannot answer now",
    Ended = 7 "the message is dead, parked or discarded: there is no result",
    WaitOver = 8 "the wait was over before there was an outcome or a message",
    RetryLater = 75 "refused for now (quota, rate, disk full): try again later",
}

impl Exit {
    /// What a refusal of the broker ends a command with.
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

    /// Of many answers, the one that a script should hear about: the first that is not `Ok`.
    pub(crate) fn and(self, other: Self) -> Self {
        if self == Self::Ok { other } else { self }
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

    #[test]
    fn the_first_trouble_of_many_is_told() {
        assert_eq!(Exit::Ok.and(Exit::Conflict).and(Exit::Ok), Exit::Conflict);
        assert_eq!(Exit::Missing.and(Exit::Conflict), Exit::Missing);
    }
}
