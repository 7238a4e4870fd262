-- Sessions of a principal, of all agents. ARGV: prefix, tenant, owner, the last one of the page before or empty, limit, now.
local prefix, tenant, owner, after, limit, now = unpack(ARGV)
local index, from, found = prefix .. ':o:' .. tenant .. US .. owner, '-', {}
if after ~= '' then
    from = '(' .. after
end
while #found < tonumber(limit) do
    local members = redis.call('ZRANGEBYLEX', index, from, '+', 'LIMIT', 0, limit)
    for _, member in ipairs(members) do
        local hash = prefix .. ':s:' .. tenant .. US .. member
        local who, ends = unpack(redis.call('HMGET', hash, 'owner', 'expires'))
        if who == owner and not over(ends, now) and #found < tonumber(limit) then
            found[#found + 1] = member
        end
        from = '(' .. member
    end
    if #members < tonumber(limit) then
        break
    end
end
return found
