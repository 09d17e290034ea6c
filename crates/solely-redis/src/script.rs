//! What Redis does in one step.
//!
//! Every write names an instant of Redis's own clock after which it is not done any more: a
//! command that was held up on its way does not act on a world that has moved on.

/// A script and the name that Redis has for it.
pub(crate) struct Script {
    pub(crate) code: String,
    pub(crate) hash: String,
}

/// The scripts, by what they do.
pub(crate) struct Scripts {
    /// Replaces an older copy. Keys: the copy, and the mark where it can be looked at in the same
    /// step. Arguments: text, time of change, life in milliseconds (none: it is deleted), deadline,
    /// whether times are compared, the store, the time of change in milliseconds, the name of a key
    /// beside the copy that holds the time of change (none: empty).
    pub(crate) replace: Script,
    /// Adds a copy. Keys: the copy, and the mark where it can be looked at in the same step.
    /// Arguments: text, life in milliseconds, deadline, whether only where there is none, the mark as
    /// it was when the copy was missing, the time of change, the name of a key beside the copy.
    pub(crate) back_fill: Script,
    /// Moves the mark of what the copies follow. Keys: the mark. Arguments: the mark before, the
    /// new one, its life in milliseconds, deadline.
    pub(crate) advance: Script,
    /// Takes hints, all or none. Keys: the hints. Arguments: owner, life in milliseconds.
    pub(crate) take: Script,
    /// Keeps hints, setting those again that have vanished. Keys and arguments as above.
    pub(crate) keep: Script,
    /// Gives hints back. Keys: the hints. Arguments: owner.
    pub(crate) give_back: Script,
    /// Reads the mark and copies, and takes the hint of each that is missing. Keys: the mark, the
    /// copies, their hints. Arguments: life in milliseconds, the owner of each hint. Answers with the
    /// mark, the fence, the copies, and for each its hint: none where it was not needed, 1 where it was
    /// taken, who has it and for how long where it was not.
    pub(crate) read_or_take: Script,
}

const LATE: &str = "
local function late(deadline)
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) > tonumber(deadline)
end
";

const HINT: &str = "
local function fence()
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000000 + time[2])
end
local function mine(value, owner)
  return string.match(value, '^(.*) %d+$') == owner
end
";

const REPLACE: &str = "
if late(ARGV[4]) then return -1 end
local old = redis.pcall('GET', KEYS[1])
if type(old) == 'table' and old.err then
  redis.call('DEL', KEYS[1])
  old = false
end
local mark = KEYS[2] and redis.call('GET', KEYS[2])
if mark and ARGV[5] == '1' then
  local store, at = string.match(mark, '^(.*) (%d+)$')
  if store ~= ARGV[6] then return -2 end
  -- What the copies follow already and is not there any more has been replaced.
  if not old and tonumber(at) >= tonumber(ARGV[7]) then return 0 end
end
if old and ARGV[5] == '1' then
  local fine, was = pcall(cjson.decode, old)
  if fine and type(was) == 'table' and type(was.updatedAt) == 'string'
     and was.updatedAt >= ARGV[2] then return 0 end
end
local lives = tonumber(ARGV[3]) > 0
if lives then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
else redis.call('DEL', KEYS[1]) end
if ARGV[8] ~= '' then
  if lives and string.find(ARGV[1], '{\"forgotten\"', 1, true) ~= 1
  then redis.call('SET', ARGV[8], ARGV[2], 'PX', ARGV[3])
  else redis.call('DEL', ARGV[8]) end
end
return 1
";

const BACK_FILL: &str = "
if late(ARGV[3]) then return -1 end
if KEYS[2] and redis.call('GET', KEYS[2]) ~= ARGV[5] then return 0 end
local set = {'SET', KEYS[1], ARGV[1], 'PX', ARGV[2]}
if ARGV[4] == '1' then set[6] = 'NX' end
if redis.call(unpack(set)) and ARGV[7] ~= '' then
  redis.call('SET', ARGV[7], ARGV[6], 'PX', ARGV[2])
end
return 1
";

impl Scripts {
    pub(crate) fn new() -> Self {
        let with = |before: &str, code: &str| {
            let code = format!("{before}{code}");
            Script { hash: redis::Script::new(&code).get_hash().to_owned(), code }
        };
        Self {
            replace: with(LATE, REPLACE),
            back_fill: with(LATE, BACK_FILL),
            advance: with(
                LATE,
                "if late(ARGV[4]) then return -1 end
                 if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
                 redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
                 return 1",
            ),
            take: with(
                HINT,
                "for _, key in ipairs(KEYS) do
                   local held = redis.call('GET', key)
                   if held then return {held, redis.call('PTTL', key)} end
                 end
                 local token = fence()
                 for _, key in ipairs(KEYS) do
                   redis.call('SET', key, ARGV[1] .. ' ' .. token, 'PX', ARGV[2])
                 end
                 return {token}",
            ),
            keep: with(
                HINT,
                "local vanished = 0
                 for _, key in ipairs(KEYS) do
                   local held = redis.call('GET', key)
                   if not held then
                     redis.call('SET', key, ARGV[1] .. ' ' .. fence(), 'PX', ARGV[2])
                     vanished = 1
                   elseif mine(held, ARGV[1]) then redis.call('PEXPIRE', key, ARGV[2]) end
                 end
                 return vanished",
            ),
            give_back: with(
                HINT,
                "for _, key in ipairs(KEYS) do
                   local held = redis.call('GET', key)
                   if held and mine(held, ARGV[1]) then redis.call('DEL', key) end
                 end
                 return 1",
            ),
            read_or_take: with(
                HINT,
                "local call, keys, owners, life = redis.call, KEYS, ARGV, ARGV[1]
                 local count = (#keys - 1) / 2
                 local mark, token = call('GET', keys[1]), fence()
                 local answer = {mark, token}
                 -- A command has a bounded number of arguments here.
                 for from = 1, count, 500 do
                   local to = math.min(from + 499, count)
                   local copies = call('MGET', unpack(keys, 1 + from, 1 + to))
                   for n = from, to do
                     local copy, hint = copies[n - from + 1], false
                     if not copy or not mark or string.find(copy, '{\"forgotten\"', 1, true) == 1 then
                       local lock = keys[1 + count + n]
                       if call('SET', lock, owners[1 + n] .. ' ' .. token, 'NX', 'PX', life) then
                         hint = 1
                       else
                         hint = {call('GET', lock), call('PTTL', lock)}
                       end
                     end
                     answer[2 + n] = copy
                     answer[2 + count + n] = hint
                   end
                 end
                 return answer",
            ),
        }
    }

    /// Every one of them, to be loaded by a new connection.
    pub(crate) fn all(&self) -> [&Script; 7] {
        [
            &self.replace,
            &self.back_fill,
            &self.advance,
            &self.take,
            &self.keep,
            &self.give_back,
            &self.read_or_take,
        ]
    }
}
